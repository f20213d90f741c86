"""How llama.cpp reads a directory: what its converter writes into the GGUF file, and what its runtime builds of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from draftconv.drafter.boundaries import IDS
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Fusion, Mla, Rope
from draftconv.drafter.rope import read_rope
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.engines.llamacpp.sources import IDS_BUILD
from draftconv.engines.load_results import LoadResult, sort_load_results
from draftconv.engines.model_build import build
from draftconv.engines.rope_config import handed_over
from draftconv.engines.rules import DirectoryView, EngineSpec, SimulatedLoad

ARCHITECTURES = frozenset({
    "ArceeForCausalLM", "Eagle3DraftModel", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "IQuestCoderForCausalLM",
    "LLaMAForCausalLM", "LlamaForCausalLM", "LlamaForCausalLMEagle3", "LlavaForConditionalGeneration",
    "MistralForCausalLM", "MixtralForCausalLM", "SmolLM3ForCausalLM", "VLlama3ForCausalLM",
    "VoxtralForConditionalGeneration",
})  # fmt: skip
"""architectures[0] → LlamaModel or a class made of it, which alone know EAGLE-3. `LlamaModel` itself, under which
names get another prefix, is not one."""

STATES = 3
"""How many captured states the runtime takes."""

_LAYER = re.compile(r"^(?:midlayer|(?:model\.)?layers\.0)\.(.+)$")

_IN_LAYER = frozenset({
    "hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_proj.weight",
    "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight", "mlp.gate_proj.weight",
    "mlp.up_proj.weight", "mlp.down_proj.weight",
})  # fmt: skip

_ONCE = frozenset({EMBEDDING, HEAD, "fc.weight", "norm.weight"})
"""Found with and without `model.` in front."""

_SCALINGS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
}
"""Kind → keys that reach the runtime. YaRN's multiplier is always 0.1 ln(factor) + 1: the file's attention factor is
overwritten, and the mscales are not written."""


def flatten(data: Mapping[str, object]) -> Mapping[str, object]:
    """The keys that the converter looks at: `transformer_layer_config` goes over the top level."""
    inner = Config(data).section("transformer_layer_config").data
    return {**data, **inner}


def read(view: DirectoryView, truth: Facts, target: Target | None, spec: EngineSpec) -> SimulatedLoad:
    raw, config = Config(view.config), Config(flatten(view.config))
    built = build(config, mla=isinstance(truth.attention, Mla))
    ids = raw.integers(IDS)
    kept = view.tensors.get("d2t")
    draft_vocab = kept.shape[0] if kept is not None and kept.shape else built.vocab
    built = replace(
        built,
        draft_vocab=draft_vocab,
        vocab_order="full" if draft_vocab == built.vocab else "unordered",
        aux=len(ids) if ids and not spec.before(*IDS_BUILD) else STATES,
        fusion=_fusion(raw, spec),
        norm_before_residual=bool(raw.flag("norm_before_residual")),
        rope=_rope(_parsed(config)),
    )
    results = sort_load_results(view.tensors, lambda name: _load(name, built.fusion))
    lent = {HEAD} | ({EMBEDDING} if built.target_hidden == built.hidden else set())
    return SimulatedLoad(view, config, spec, results, built, truth, target, frozenset(lent))


def _fusion(raw: Config, spec: EngineSpec) -> Fusion:
    """`norm_before_fc` at the top level alone, and not before `IDS_BUILD`."""
    return "norm_before_fc" if raw.flag("norm_before_fc") and not spec.before(*IDS_BUILD) else "plain"


def _parsed(config: Config) -> Rope:
    """The embedding as the converter finds it: transformers parses a config first that has a model_type."""
    return read_rope(handed_over(config) if config.has("model_type") else config, mla=False)[0]


def _rope(rope: Rope) -> Rope:
    """What of it is computed."""
    if rope.kind not in _SCALINGS:
        return Rope(rope.theta, "halves")
    kept = {key: rope.scaling[key] for key in _SCALINGS[rope.kind] if key in rope.scaling}
    return Rope(rope.theta, "halves", rope.kind, MappingProxyType(kept))


def _load(name: str, fusion: Fusion) -> LoadResult:
    """Where one tensor goes; the converter stops at a name that it does not know, the runtime at one it has no use for.

    `t2d` and rotary tables are passed over. A bias has a name in the file and no place in the runtime.
    """
    if name == "t2d" or name.endswith(".rotary_emb.inv_freq"):
        return "dropped"
    if name == "d2t":
        return ("d2t",)
    if name == "input_norm.weight":
        return (name,) if fusion == "norm_before_fc" else "fatal"
    bare = name.removeprefix("model.")
    if bare in _ONCE:
        return (bare,)
    match = _LAYER.match(name)
    if match and match[1] in _IN_LAYER:
        return (f"layers.0.{match[1]}",)
    return "fatal"
