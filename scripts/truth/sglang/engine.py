"""SGLang's own draft classes: imported once, and asked in forked processes, so that each question finds them new.

What runs is SGLang's: the parsing of config.json, the look-up of the class, its construction, `load_weights`, the
sharing of embedding and head, its target classes' reading of layer ids, and the draft model's forward pass. What is
replaced: compiled kernels by plain torch (attention, the rotary embedding's general factory), answers about the
hardware, and nothing else. `look` builds and fills a draft model and lets it draft.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from truth.asking import EngineDied, Refusal, ask
from truth.sglang import absent
from truth.sglang.attention import attention
from truth.sglang.sample import Sample

if TYPE_CHECKING:
    from torch import Tensor

Platform = Literal["cpu", "cuda", "hip"]
"""What SGLang is made to believe it runs on: `cuda` a B200, `hip` an MI325X; tensors stay on the CPU."""

CAPABILITIES: Mapping[Platform, tuple[int, int]] = {"cuda": (10, 0), "hip": (9, 4)}

CLASSES = ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM")
"""The two EAGLE-3 draft classes."""

UNFILLED = {"float": float("nan"), "bytes": 77, "integers": -77}
"""What every parameter holds before anything is loaded."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model as SGLang built, filled and ran it.

    Attributes:
        name: of the class. `dtype`: its parameters'. `quantization`: the method that it read, or None.
        tensors: parameters by name after loading, before a target's tables are put in.
        methods: runtime name → class of its quantization method.
        hot: what stands for d2t: target id by draft id, or None.
        captured: boundaries whose states reach the drafter, by the target's own class; None: the last state alone.
        asked: boundaries that were asked for, in the order in which states would be joined.
        first, second: logits and fed-back state of two steps [T, V] and [T, H], on `Sample`; empty where none ran.
        refused: why the first step could not run, or "".
        shared: the target's tables that were put in.
    """

    name: str
    dtype: str
    quantization: str | None
    tensors: Mapping[str, Tensor]
    methods: Mapping[str, str]
    hot: Tensor | None
    asked: tuple[int, ...] | None
    captured: tuple[int, ...] | None
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]
    refused: str
    shared: frozenset[str]


def start() -> str:
    """Import SGLang with everything that questions need, and return its version.

    Raises:
        EngineDied: torch would compute with several threads here, and a forked process hangs in their pool.
    """
    os.environ.update(HF_HUB_OFFLINE="1")
    os.environ.pop("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", None)  # it turns a refusal into a warning
    import torch
    import transformers
    import transformers.models.auto.modeling_auto
    import transformers.models.auto.processing_auto  # noqa: F401

    if torch.get_num_threads() != 1:
        raise EngineDied("torch has several threads: start Python with OMP_NUM_THREADS=1")
    absent.stand_in()
    import sglang

    _publish_arguments()
    _import_models()
    _replace_kernels()
    return str(sglang.__version__)


def look(
    draft: Path,
    target: Path,
    sample: Sample,
    platform: Platform = "cpu",
    dtype: str = "float32",
    *,
    load: bool = True,
) -> Draft | Refusal:
    """Build the draft model beside a target, fill it, and let it draft two steps where it is not quantized.

    Args:
        dtype: of the model; `auto`: what config.json says. `load`: False to build it and nothing more.
    """
    answer = ask(lambda: _packed(_look(draft, target, sample, platform, dtype, load=load)))
    return answer if isinstance(answer, Refusal) else _unpacked(answer)


# ── before any question ────────────────────────────────────────────────────────────

TARGET: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 8, "vocab_size": 256,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
"""A target for the server's arguments, which questions do not use."""


def _publish_arguments() -> None:
    """A scheduler's process of one rank, as far as models look at it."""
    import json

    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    place = Path(tempfile.mkdtemp())
    (place / "config.json").write_text(json.dumps(TARGET), encoding="utf-8")
    arguments = ServerArgs(
        model_path=str(place), device="cpu", attention_backend="torch_native", disable_cuda_graph=True,
        skip_tokenizer_init=True,
    )  # fmt: skip
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0, dp_rank=None))
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

    init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{place}/rendezvous"
    )
    initialize_model_parallel(backend="gloo")


def _import_models() -> None:
    """The two draft classes are registered by hand: asking for the registry would import every model there is."""
    from sglang.srt.models import deepseek_v2, kimi_k25_eagle3, llama, llama_eagle3  # noqa: F401
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.models["LlamaForCausalLMEagle3"] = llama_eagle3.LlamaForCausalLMEagle3
    ModelRegistry.models["Eagle3DeepseekV2ForCausalLM"] = kimi_k25_eagle3.Eagle3DeepseekV2ForCausalLM


def _replace_kernels() -> None:
    """Plain torch in place of what only a GPU computes, and a GPU's code paths in place of the CPU's own."""
    import sglang.srt.layers.linear as linear
    import sglang.srt.layers.parameter as parameter
    import sglang.srt.layers.rotary_embedding.factory as factory
    import sglang.srt.layers.rotary_embedding.rope_variant as variant
    import torch
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.models import deepseek_v2
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttnForwardMethod

    known = 8  # parameters that both have: the CPU's own has the device behind them

    def rotary(*args: Any, **keywords: Any) -> Any:
        keywords.pop("device", None)
        return factory.get_rope(*args[:known], **keywords)

    factory.get_rope_cpu = rotary  # the CPU's own knows deepseek_yarn only
    variant.get_device = lambda *_, **__: "cpu"
    linear._is_cpu = parameter._is_cpu = False  # the CPU's loading pads what is too short
    RadixAttention.forward = attention
    deepseek_v2.DeepseekV2AttentionMLA.dispatch_attn_forward_method = lambda *_: AttnForwardMethod.MLA
    torch.cuda.empty_cache = lambda: None
    torch.cuda.synchronize = lambda *_: None


# ── a question ─────────────────────────────────────────────────────────────────────


def _look(draft: Path, target: Path, sample: Sample, platform: Platform, dtype: str, *, load: bool) -> Draft:
    import torch
    from sglang.srt.model_loader.utils import set_default_torch_dtype

    config, cls, name = _chosen(draft, sample, platform, dtype)
    asked, captured = _captured(config, target)
    with set_default_torch_dtype(config.dtype), torch.no_grad():
        model = _filled(draft, config, cls, load=load)
        if load and platform == "hip":
            _lay_out(model)
        tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        plain = load and platform == "cpu" and config.quantization is None
        shared = _share(model, sample, config.dtype) if plain else frozenset()
        first, second, refused = _drafted(model, sample, captured) if plain else ((), (), "")
    methods = {
        name: type(module.quant_method).__name__
        for name, module in model.named_modules()
        if getattr(module, "quant_method", None) is not None
    }
    hot = model.hot_token_id
    return Draft(
        name, str(config.dtype).removeprefix("torch."), config.quantization, tensors, methods, hot, asked, captured,
        first, second, refused, shared,
    )  # fmt: skip


def loaded(draft: Path, sample: Sample, platform: Platform) -> Any:
    """The draft model itself, filled and nothing more, in the dtype of config.json; for questions in a fork of theirs.

    Raises:
        ValueError: the config names no EAGLE-3 draft class.
    """
    import torch
    from sglang.srt.model_loader.utils import set_default_torch_dtype

    config, cls, _ = _chosen(draft, sample, platform, "auto")
    with set_default_torch_dtype(config.dtype), torch.no_grad():
        return _filled(draft, config, cls, load=True)


def _chosen(draft: Path, sample: Sample, platform: Platform, dtype: str) -> tuple[Any, Any, str]:
    """The config as SGLang reads it, and the draft class and its name."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader.utils import get_model_architecture

    _pretend(platform)
    config = ModelConfig(
        model_path=str(draft), is_draft_model=True, dtype=dtype, speculative_algorithm="EAGLE3",
        context_length=sample.positions,
    )  # fmt: skip
    cls, name = get_model_architecture(config)
    if name not in CLASSES:
        raise ValueError(f"resolved to {name}, which is no EAGLE-3 draft class")
    return config, cls, name


def _filled(draft: Path, config: Any, cls: Any, *, load: bool) -> Any:
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader

    model = cls(config=config.hf_config, quant_config=loader._get_quantization_config(config, LoadConfig()))
    for parameter in model.parameters():
        parameter.data.fill_(UNFILLED[_kind(parameter)])
    if load:
        model.load_weights(_stored(draft))
    return model


def _lay_out(model: Any) -> None:
    """Of what methods do after loading, the one step that needs no GPU to be seen failing.

    INT4 of compressed-tensors is repacked by a function that is imported on CUDA alone. Only the workspace, which
    asks a device for its size, is left out.
    """
    from sglang.srt.layers.quantization.compressed_tensors.schemes import compressed_tensors_wNa16 as packed

    packed.marlin_make_workspace = lambda *_: None
    for module in model.modules():
        scheme = getattr(module, "scheme", None)
        if isinstance(scheme, packed.CompressedTensorsWNA16):
            scheme.process_weights_after_loading(module)


def _packed(draft: Draft) -> bytes:
    """By torch's own way, for pickle alone knows no 8-bit floats."""
    import torch

    buffer = io.BytesIO()
    torch.save(draft, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> Draft:
    import torch

    draft: Draft = torch.load(io.BytesIO(packed), weights_only=False)  # written by our own child
    return draft


def _pretend(platform: Platform) -> None:
    """Let the modules that ask for the hardware be answered as there; in this fork alone."""
    if platform == "cpu":
        return
    import torch

    capability = CAPABILITIES[platform]
    torch.cuda.get_device_capability = lambda *_, **__: capability
    _register(platform)
    asking = (
        "sglang.srt.layers.quantization", "sglang.srt.model_loader.loader", "sglang.srt.configs.model_config",
        "sglang.srt.hardware_backend.gpu.quantization",
    )  # fmt: skip
    answers = {"is_hip": platform == "hip", "is_cuda": platform == "cuda", "is_cpu": False}
    for name, module in list(sys.modules.items()):
        if name.startswith(asking):
            for question, answer in answers.items():
                if callable(vars(module).get(question)):
                    setattr(module, question, lambda answer=answer: answer)
                if f"_{question}" in vars(module):
                    setattr(module, f"_{question}", answer)
            if "get_device_capability" in vars(module):
                module.get_device_capability = lambda *_, **__: capability  # type: ignore[attr-defined]


def _register(platform: Platform) -> None:
    """What the registry of methods has there and not where it was filled: MXFP4 on CUDA; on no GPU plain GPTQ."""
    from sglang.srt.layers.quantization import BASE_QUANTIZATION_METHODS, QUANTIZATION_METHODS
    from sglang.srt.layers.quantization.mxfp4 import Mxfp4Config

    for methods in (BASE_QUANTIZATION_METHODS, QUANTIZATION_METHODS):
        methods.pop("gptq", None)
        methods.pop("mxfp4", None)
        if platform == "cuda":
            methods["mxfp4"] = Mxfp4Config


def _kind(parameter: Tensor) -> str:
    import torch

    if parameter.dtype.is_floating_point:
        return "float"
    return "bytes" if parameter.dtype == torch.uint8 else "integers"


def _stored(draft: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for file in sorted(draft.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  safe_open is no mapping
                yield name, opened.get_tensor(name)


def _share(model: Any, sample: Sample, dtype: Any) -> frozenset[str]:
    """Put the target's tables in as the draft worker does: srt/speculative/eagle_worker.py, 0.5.23."""
    import torch

    embedding = torch.nn.Parameter(sample.embedding.to(dtype), requires_grad=False)
    before = model.model.embed_tokens.weight
    if getattr(model, "load_lm_head_from_target", False):
        head = torch.nn.Parameter(sample.head.to(dtype), requires_grad=False)
        model.set_embed_and_head(embedding, head)
        return frozenset({"embed_tokens.weight", "lm_head.weight"})
    model.set_embed(embedding)
    return frozenset({"embed_tokens.weight"}) if model.model.embed_tokens.weight is not before else frozenset()


def _captured(config: Any, target: Path) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Boundaries that are asked for, and those of them that the target's loop hands out, both by SGLang's own code."""
    import sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state as states
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_executor.model_runner_components.attention_backend_setup import (
        configure_aux_hidden_state_capture,
    )
    from sglang.srt.models import deepseek_v2, llama
    from transformers import AutoConfig

    wanted = states.SpecAuxHiddenStateConfig()
    algorithm = SimpleNamespace(is_eagle=lambda: True, is_eagle3=lambda: True, is_standalone=lambda: False)
    ModelConfig.from_server_args = staticmethod(lambda *_, **__: config)  # in this fork alone
    states.get_spec = lambda: SimpleNamespace(
        speculative_draft_model_path="given", speculative_draft_model_revision=None
    )
    states._resolve_eagle_aux_hidden_state(
        config=wanted, server_args=None, model_config=config, spec_algorithm=algorithm, is_draft_worker=False
    )
    described = AutoConfig.from_pretrained(target)
    layers = described.num_hidden_layers
    cls = llama.LlamaForCausalLM if described.model_type == "llama" else deepseek_v2.DeepseekV2ForCausalLM
    model = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True), model=SimpleNamespace(layers_to_capture=[]),
        config=SimpleNamespace(num_hidden_layers=layers), capture_aux_hidden_states=False,
    )  # fmt: skip
    model.set_eagle3_layers_to_capture = lambda ids: cls.set_eagle3_layers_to_capture(model, ids)
    configure_aux_hidden_state_capture(
        model=model, eagle_use_aux_hidden_state=wanted.eagle_use_aux_hidden_state,
        eagle_aux_hidden_state_layer_ids=wanted.eagle_aux_hidden_state_layer_ids, dflash_use_aux_hidden_state=False,
        dflash_target_layer_ids=None, is_dspark=False,
    )  # fmt: skip
    if not model.capture_aux_hidden_states:
        return None, None
    asked = tuple(model.model.layers_to_capture)
    return asked, tuple(layer for layer in range(layers) if layer in asked)  # the loop of both targets' forward


def _drafted(
    model: Any, sample: Sample, captured: Sequence[int] | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], str]:
    """Logits and fed-back states of a step on captured states, and of one on states of the drafter's own width."""
    import torch

    wide = sample.states(None if captured is None else len(captured))
    try:
        first = _step(model, wide, sample.tokens)
        if model.hot_token_id is not None:  # any row of the head may be drafted: srt/speculative/eagle_worker_v2.py
            _ = model.hot_token_id[torch.arange(model.lm_head.weight.shape[0])]
    except Exception as error:  # whatever its modules raise on states that do not fit is what the server would raise
        return (), (), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return first, _step(model, sample.fed, sample.tokens), ""


class _Batch(SimpleNamespace):
    """What the draft classes read off a batch; anything else is absent."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _step(model: Any, states: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    positions = torch.arange(len(tokens))
    batch = _Batch(
        mm_input_embeds=None, forward_mode=ForwardMode.EXTEND, contains_mm_inputs=lambda: False,
        spec_info=SimpleNamespace(hidden_states=states), mrope_positions=positions.repeat(3, 1),
        extend_prefix_lens_cpu=[0], attn_attend_prefix_cache=None, mha_return_lse=False, batch_size=1,
    )  # fmt: skip
    hidden, fed_back = model.model(tokens, positions, batch)
    return torch.nn.functional.linear(hidden.float(), model.lm_head.weight.float()), fed_back[0].float()
