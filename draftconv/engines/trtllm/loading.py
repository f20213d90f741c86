"""How TensorRT-LLM reads a directory: what it builds, where each tensor goes, what it is left without."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Fusion, Mla
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import HEAD, expected
from draftconv.engines.load_results import Causes, LoadResult, is_fused, sort_load_results
from draftconv.engines.model_build import build, without
from draftconv.engines.rules import DirectoryView, EngineSpec, SimulatedLoad
from draftconv.engines.trtllm.rotary import rope_of

MISNAMED: Causes = (
    ("trtllm-prefix", r"^model\.(?!.*lm_head)"),
    ("trtllm-later-norm", r"^(midlayer|layers)\.[1-9]\d*\.input_layernorm\."),
    ("trtllm-layer-names", r"^(midlayer|layers)\."),
)

SKIPPED: Causes = (
    ("trtllm-prefix", r"^model\.(?!.*lm_head)"),
    ("trtllm-embedding", r"^embed_tokens\."),
    ("trtllm-fusion", r"(^|\.)(fc_norm|input_norm)\."),
    ("trtllm-later-norm", r"^(midlayer|layers)\.[1-9]\d*\.input_layernorm\."),
    ("trtllm-attention-bias", r"\.[qkvo]_proj\.bias$"),
    ("trtllm-mlp-bias", r"\.(gate|up|down)_proj\.bias$"),
    ("trtllm-fc-bias", r"^fc\.bias$"),
    ("trtllm-qk-norm", r"\.[qk]_norm\.weight$"),
)


LLAMA4_MLP = 16384
"""intermediate_size_mlp of transformers' Llama4TextConfig."""


def _load(name: str, built: Facts, expected_names: Collection[str], spec: EngineSpec) -> LoadResult:
    """Where one tensor goes: Eagle3ForCausalLM.load_weights of _torch/models/modeling_speculative.py.

    Names get `model.` in front, unless they hold `lm_head`; modules are called `midlayer.X` in a
    drafter of one layer and `midlayer.N.X` in others. `layers.N.` is renamed since 1.3 (PR 11010).
    """
    if name == "lm_head.weight":
        return ("lm_head.weight",)
    if name == "d2t":
        return ("d2t",) if built.draft_vocab != built.vocab else "dropped"
    if name == "embed_tokens.weight":
        return ("embed_tokens.weight",) if built.target_hidden != built.hidden else "dropped"
    if is_fused(name):
        return "fatal"
    canonical = _canonical(name, built.layers, spec)
    return (canonical,) if canonical in expected_names else "dropped"


def _canonical(name: str, layers: int, spec: EngineSpec) -> str:
    """The canonical name behind a file name that is looked for; "" for one that is not."""
    match = re.fullmatch(r"(midlayer|layers)\.(?:(\d+)\.)?([a-z].*)", name)
    if match is None:
        return name
    stem, index, rest = match.groups()
    if stem == "layers" and (spec.before(1, 3) or index is None or (layers == 1 and index != "0")):
        return ""
    if stem == "midlayer" and (index is None) != (layers == 1):
        return ""
    layer = int(index or 0)
    if layer and rest.startswith("input_layernorm."):
        return ""
    return f"layers.{layer}." + (rest.replace("hidden_norm.", "input_layernorm.", 1) if layer else rest)


def read(view: DirectoryView, truth: Facts, target: Target | None, spec: EngineSpec) -> SimulatedLoad:
    config = Config(view.config)
    eagle = config.section("eagle_config")
    mla = isinstance(truth.attention, Mla)
    bias = bool(config.flag("attention_bias"))
    built = build(without(config, "rope_parameters", "rope_interleave"), mla=mla, qkv_bias=bias, o_bias=bias)
    if config.text("model_type") == "llama4_text":
        built = replace(built, intermediate=config.size("intermediate_size_mlp") or LLAMA4_MLP)
    if not spec.before(1, 3):
        built = replace(built, rope=rope_of(config, mla=mla))
    post_norm = eagle.flag("return_hidden_post_norm") or (config.flag("norm_output") and not spec.before(1, 3))
    built = replace(
        built,
        aux=truth.aux,  # from eagle3_layers_to_capture of the serve file
        fusion=_fusion(config, eagle, spec),
        feedback="post-norm" if post_norm else "pre-norm",
        mlp_bias=bool(config.flag("mlp_bias")),
        fc_bias=bool(config.flag("bias")),
    )
    lent = {"embed_tokens.weight"} if built.target_hidden == built.hidden else set()
    if built.draft_vocab == built.vocab and not own_head(view):
        lent.add(HEAD)
    expected_tensors = expected(built)
    results = sort_load_results(view.tensors, lambda name: _load(name, built, expected_tensors, spec))
    return SimulatedLoad(
        view, config, spec, results, built, truth, target, frozenset(lent), MISNAMED, replaced=frozenset(lent)
    )


def own_head(view: DirectoryView) -> bool:
    """A head of its own is built when any name holds lm_head, and filled from one that is just that."""
    return any("lm_head" in name for name in view.tensors)


def _fusion(config: Config, eagle: Config, spec: EngineSpec) -> Fusion:
    if spec.before(1, 3):
        return "plain"
    if config.flag("fc_norm"):
        return "fc_norm"
    return "norm_before_fc" if eagle.flag("norm_before_fc") else "plain"


PARTS = re.compile(r"\.(q|k|v|gate|up)_proj\.weight$")
_OWN_RULE = ("d2t", "_proj.bias", "fc.bias")


def unfilled(load: SimulatedLoad) -> Sequence[str]:
    """What is missing, but for what has rules of its own; a head that nobody asks for is the target's."""
    own = (*_OWN_RULE,) if own_head(load.view) else (*_OWN_RULE, HEAD)
    return [name for name in load.missing if not name.endswith(own)]
