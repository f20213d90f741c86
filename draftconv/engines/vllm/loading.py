"""How vLLM reads a directory: the config it ends up with, the class it builds, where each tensor goes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from draftconv.drafter.boundaries import IDS
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Mla
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import expected
from draftconv.engines.cut_tensors import CutTensors
from draftconv.engines.load_results import Causes, LoadResult, fused_parts, sort_load_results
from draftconv.engines.model_build import build, fusion, without
from draftconv.engines.rope_config import PARTIAL, handed_over, turned_in_part
from draftconv.engines.rules import DirectoryView, EngineSpec, SimulatedLoad
from draftconv.engines.shapes import BY_OUTPUT

Kind = Literal["llama", "qwen3", "mla"]

CLASSES: Mapping[str, Kind] = {
    "LlamaForCausalLMEagle3": "llama",
    "Eagle3LlamaForCausalLM": "llama",
    "LlamaForCausalLM": "llama",
    "Eagle3MiniMaxM2ForCausalLM": "llama",
    "Eagle3Qwen2_5vlForCausalLM": "llama",
    "Eagle3Qwen3vlForCausalLM": "llama",
    "Eagle3Qwen3ForCausalLM": "qwen3",
    "Qwen3ForCausalLM": "qwen3",
    "Eagle3DeepseekV2ForCausalLM": "mla",
    "Eagle3DeepseekV3ForCausalLM": "mla",
    "DeepseekV2ForCausalLM": "mla",
    "DeepseekV3ForCausalLM": "mla",
}
"""architectures[0] → drafter class, after the `Eagle3` prefix rule (model_executor/models/registry.py)."""

UNCAPPED_ROPES = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
"""Rope kinds under which a short max_position_embeddings is raised to the served length (config/speculative.py)."""

LATER_NORM: Causes = (("vllm-later-norm", r"\.hidden_norm\."),)
MISNAMED: Causes = (*LATER_NORM, ("vllm-bias-dropped", r"\.bias$"))
SPECULATORS_CLASSES: Mapping[str, Kind] = {"llama": "llama", "qwen3": "qwen3"}
"""transformer_layer_config.model_type → class (transformers_utils/configs/speculators/algos.py)."""

SPECULATORS_KEYS = (
    "draft_vocab_size", "target_hidden_size", "norm_before_fc", "fc_norm", "norm_output", IDS, "quantization_config",
)  # fmt: skip
"""Top-level keys that survive the speculators import; norm_before_residual is the one with a default of its own."""


def speculators(data: Mapping[str, object]) -> bool:
    return "speculators_config" in data and "model_type" not in data


def flatten(data: Mapping[str, object]) -> tuple[Mapping[str, object], Kind | None]:
    """The config vLLM ends up with, and the drafter class (None: not registered)."""
    if speculators(data):
        inner = Config(data).section("transformer_layer_config").data
        kind = Config(inner).text("model_type") or ""
        flat = {**inner, **{key: data[key] for key in SPECULATORS_KEYS if data.get(key) is not None}}
        return {**flat, "norm_before_residual": data.get("norm_before_residual", True)}, SPECULATORS_CLASSES.get(kind)
    if data.get("model_type") == "eagle":
        # Legacy EAGLEConfig (transformers_utils/configs/eagle.py): the inner keys, unless the wrapper has them too.
        model = Config(data).section("model")
        outer = {key: value for key, value in data.items() if key != "model"}
        data = {**model.data, **outer, "architectures": [_prefixed_name(model, Config(data).text("method"))]}
    name = next(iter(Config(data).texts("architectures")), "")
    return data, CLASSES.get(name)


def _prefixed_name(inner: Config, method: str | None) -> str:
    """What EAGLEConfig makes of the inner architecture; without `"method": "eagle3"` it is EAGLE-1's class."""
    name = next(iter(inner.texts("architectures")), "")
    if method == "eagle3":
        return name if name.startswith("Eagle3") or name.endswith("Eagle3") else f"Eagle3{name}"
    return name if name.startswith("Eagle") else f"Eagle{name}"


def _fitting(kind: Kind | None, truth: Facts) -> Kind:
    """The class to go on with: the engine's where it suits the drafter, else the one that would."""
    if isinstance(truth.attention, Mla):
        return "mla"
    if kind in ("llama", "qwen3"):
        return kind
    return "qwen3" if truth.attention.qk_norm else "llama"


def _load(name: str, built: Facts, expected_names: Collection[str], *, fused: bool, reduced: bool) -> LoadResult:
    """Where one tensor goes: `load_weights` of llama_eagle3.py, qwen3_eagle3.py and deepseek_eagle3.py.

    `expected_names` are the tensors of `built`; `fused` is whether fc is built at all, `reduced` whether a map of
    ids is.
    """
    mla = isinstance(built.attention, Mla)
    if "t2d" in name or re.search(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$", name):
        return "dropped"
    if name == "d2t":
        return ("d2t",) if reduced else "fatal"
    if not fused and re.match(r"fc\.", name):
        return "dropped"
    bare = name.replace("midlayer.", "layers.0.", 1)
    parts = fused_parts(bare)
    if all(part in expected_names for part in parts):
        return parts
    if name.endswith(".bias") and all(_has_module(part.removesuffix("bias"), expected_names) for part in parts):
        return "dropped"
    if re.fullmatch(r"layers\.[1-9]\d*\.hidden_norm\.weight", bare):
        return "dropped"  # built in every layer, read in the first only
    if bare in ("mask_hidden", "input_norm.weight") and not mla:
        return "dropped"
    return "fatal"


def _has_module(stem: str, expected_names: Collection[str]) -> bool:
    """Whether a module is built, whose biases are passed over where it has none."""
    return any(name.startswith(stem) for name in expected_names)


def read(view: DirectoryView, truth: Facts, target: Target | None, spec: EngineSpec) -> SimulatedLoad:
    flat, engine_kind = flatten(view.config)
    config = Config(flat)
    eagle = config.section("eagle_config")
    kind = _fitting(engine_kind, truth)
    mla = kind == "mla"
    bias = bool(config.flag("attention_bias"))
    built = build(
        without(handed_over(config), "rope_interleave"),
        mla=mla,
        qkv_bias=bias,
        o_bias=bias or bool(config.flag("bias")),
        qk_norm=kind == "qwen3",
    )
    nested = handed_over(config).section("rope_parameters").number(PARTIAL)
    built = turned_in_part(built, config.number(PARTIAL) if nested is None else nested)
    built = replace(
        built,
        aux=_aux(config, eagle, kind),
        fusion=fusion(config, per_state=bool(config.flag("fc_norm")) and not spec.before(0, 22), whole=not mla),
        feedback="post-norm" if config.flag("norm_output") and not spec.before(0, 22) else "pre-norm",
        norm_before_residual=bool(config.flag("norm_before_residual")),
        mlp_bias=bool(config.flag("mlp_bias")),
        window=_window(config, kind, plain=speculators(view.config)),
    )
    fused = mla or eagle.flag("use_aux_hidden_state") is not False
    expected_tensors = expected(built)
    whole = target.vocab if target and target.vocab else built.vocab  # what the head is compared with
    results = sort_load_results(
        view.tensors,
        lambda name: _load(name, built, expected_tensors, fused=fused, reduced=built.draft_vocab != whole),
        {"embed_tokens.weight": "fatal", **({"lm_head.weight": "fatal"} if mla else {})},
    )
    lent = {"lm_head.weight"} | ({"embed_tokens.weight"} if built.target_hidden == built.hidden else set())
    lent |= set() if fused else {"fc.weight"}
    return SimulatedLoad(view, config, spec, results, built, truth, target, frozenset(lent), MISNAMED)


def _aux(config: Config, eagle: Config, kind: Kind) -> int:
    """Width of fc in states: the top-level list counts in the Qwen3 class only."""
    ids = eagle.integers(IDS)
    if kind == "qwen3":
        ids = config.integers(IDS) or ids
        if layers := config.size("num_aux_layers"):
            return layers
    return config.size("num_aux_hidden_states") or len(ids or (0, 0, 0))


def _window(config: Config, kind: Kind, *, plain: bool) -> int | None:
    """The width; transformers' Qwen3Config forgets one without use_sliding_window, a `plain` dictionary does not."""
    if not plain and config.text("model_type") == "qwen3" and not config.flag("use_sliding_window"):
        return None
    sliding = kind != "mla" and set(config.texts("layer_types")) == {"sliding_attention"}
    return config.size("sliding_window") if sliding else None


CUT = CutTensors((*BY_OUTPUT, "q_a_proj", "kv_a_proj_with_mqa"))
"""The a-projections are whole on every rank, and loaded by the same code as what is cut along its outputs."""
