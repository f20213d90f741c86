"""How SGLang reads a directory: the class it builds, where each tensor goes, what context it derives."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from draftconv.drafter.boundaries import IDS
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Mla
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import expected
from draftconv.engines import checks
from draftconv.engines.cut_tensors import CutTensors
from draftconv.engines.load_results import Causes, LoadResult, fused_parts, sort_load_results
from draftconv.engines.model_build import build, fusion
from draftconv.engines.rope_config import PARTIAL, handed_over, turned_in_part
from draftconv.engines.rules import DirectoryView, EngineSpec, SimulatedLoad
from draftconv.engines.shapes import BY_OUTPUT

Kind = Literal["llama", "mla"]

CLASSES: Mapping[str, Kind] = {"LlamaForCausalLMEagle3": "llama", "Eagle3DeepseekV2ForCausalLM": "mla"}
"""The two EAGLE-3 draft classes, by exact architectures[0]."""

LLAMA4_INTERMEDIATE = 16384
"""Of transformers' Llama4TextConfig, for intermediate_size_mlp."""

LEGACY_NORMS = {"aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1.", "aux_norm_high.": "fc_norm.2."}
"""Names of the first EAGLE-3.1 files, which the Llama class still understands."""

NAMES: Causes = (
    ("sglang-prefix", r"^model\."),
    ("sglang-later-norm", r"^layers\.[1-9]\d*\.input_layernorm\."),
)

MISNAMED: Causes = (*NAMES, ("sglang-dropped", r"(?<!\.weight_packed)(?<!\.qweight)$"))
"""Why a name is not looked for although its module is built; packed weights have that of a plain module too."""

SKIPPED: Causes = (
    ("sglang-tied", r"^lm_head\."),
    ("sglang-fusion", r"(^|\.)(fc_norm|input_norm)\."),
    *NAMES,
    ("sglang-qkv-bias", r"\.[qkv]_proj\.bias$"),
    ("sglang-bias", r"(\.o_proj|^fc)\.bias$"),
    ("sglang-mlp-bias", r"\.(gate|up|gate_up|down)_proj\.bias$"),
    ("sglang-qk-norm", r"\.[qk]_norm\.weight$"),
)


def _load_llama(name: str, expected_names: Collection[str]) -> tuple[str, ...]:
    """Those of `expected_names` that one name fills: `load_weights` of srt/models/llama_eagle3.py, 0.5.23."""
    bare = name.replace("midlayer", "layers.0")
    if "d2t" in bare:
        return ("d2t",)
    if "t2d" in bare:
        return ()
    if bare.startswith("model.") and not bare.startswith("model.lm_head."):
        bare = bare.removeprefix("model.")
    for legacy, new in LEGACY_NORMS.items():
        bare = bare.replace(legacy, new)
    if later := re.fullmatch(r"(layers\.[1-9]\d*)\.(hidden_norm|input_layernorm)\.weight", bare):
        # Layers after the first own a hidden_norm and no input_layernorm.
        return (f"{later[1]}.input_layernorm.weight",) if later[2] == "hidden_norm" else ()
    return tuple(part for part in fused_parts(bare) if part in expected_names)


def _load_mla(name: str, expected_names: Collection[str]) -> tuple[str, ...]:
    """The same of srt/models/kimi_k25_eagle3.py, 0.5.23: `model.` is put before everything but lm_head."""
    if name == "t2d" or name.endswith(".t2d"):
        return ()
    if name == "d2t" or name.endswith(".d2t"):
        return ("d2t",)
    bare = re.sub(r"^midlayer\.", "layers.0.", name)
    return tuple(part for part in fused_parts(bare) if part in expected_names)


def _placed(name: str, expected_names: Collection[str], *, mla: bool) -> tuple[str, ...]:
    return (_load_mla if mla else _load_llama)(name, expected_names)


def placed(name: str, load: SimulatedLoad) -> tuple[str, ...]:
    """The canonical tensors that one name fills; none for a name that is not looked for."""
    return _placed(name, load.expected_tensors, mla=load.mla)


def read(view: DirectoryView, truth: Facts, target: Target | None, spec: EngineSpec) -> SimulatedLoad:
    config = Config(view.config)
    eagle = config.section("eagle_config")
    mla = isinstance(truth.attention, Mla)
    tied = bool(config.flag("tie_word_embeddings"))
    bias = bool(config.flag("attention_bias") or config.flag("bias"))
    built = build(_value_heads(handed_over(config)), mla=mla, o_bias=bias)
    if not mla and "mrope_section" in built.rope.scaling:  # of text, all sections have the same positions
        built = replace(built, rope=replace(built.rope, kind="default", scaling={}))
    if not mla:
        built = turned_in_part(built, config.number(PARTIAL))  # the Llama class asks the top level alone
    if config.text("model_type") == "llama4_text":
        built = replace(built, intermediate=config.size("intermediate_size_mlp") or LLAMA4_INTERMEDIATE)
    unread = {key: value for key, value in built.rope.scaling.items() if key != "attention_factor"}
    built = replace(
        built,
        rope=replace(built.rope, scaling=MappingProxyType(unread)),
        aux=_aux(config, eagle, mla=mla),
        fusion=fusion(config, per_state=bool(config.flag("fc_norm") or config.flag("use_aux_norm")), whole=not mla),
        feedback="post-norm" if config.flag("norm_output") else "pre-norm",
        fc_bias=bool(config.flag("bias")),
        own_head=not tied,
    )

    expected_tensors = expected(built)

    def load(name: str) -> LoadResult:
        return _placed(name, expected_tensors, mla=mla) or "dropped"

    # fc is a plain nn.Linear in the Llama class, and the embedding never asks the quantizer.
    plain = ("embed_tokens.weight",) if mla else ("embed_tokens.weight", "fc.weight")
    lent = set()
    if built.target_hidden == built.hidden:
        lent.add("embed_tokens.weight")
    if target_head(config):
        lent.add("lm_head.weight")
    results = sort_load_results(view.tensors, load, dict.fromkeys(plain, "dropped"))
    return SimulatedLoad(
        view, config, spec, results, built, truth, target, frozenset(lent), MISNAMED, replaced=frozenset(lent)
    )


def _value_heads(config: Config) -> Config:
    """A null v_head_dim becomes head_dim, which is that of the rotated part in DeepseekV3Config.

    Source: srt/configs/model_config.py, 0.5.23; transformers 5.19.
    """
    if not config.has("v_head_dim") or config.raw("v_head_dim") is not None:
        return config
    return Config({**config.data, "v_head_dim": config.raw("head_dim") or config.raw("qk_rope_head_dim")}, config.where)


def _aux(config: Config, eagle: Config, *, mla: bool) -> int:
    """Width of fc in states; num_aux_hidden_states counts in the Llama class only."""
    ids = eagle.integers(IDS)
    if mla:
        ids = config.integers(IDS) if ids is None else ids
        return 3 if ids is None else len(ids)
    return config.size("num_aux_hidden_states") or (len(ids) if ids else 3)


REGISTERED = re.compile(r"(ForCausalLM\w*|ForConditionalGeneration|Model|LMHeadModel)$")
"""How models that SGLang has are called."""


def architecture(config: Config) -> str:
    """The first of `architectures` that SGLang has a model for, else the first: `resolve_model_cls` passes others over.

    Source: srt/models/registry.py, 0.5.23. Which names it has is told by their endings.
    """
    names = config.texts("architectures")
    return next((name for name in names if name in CLASSES or REGISTERED.search(name)), next(iter(names), ""))


def target_head(config: Config) -> bool:
    """The target's head is shared: draft_vocab_size is null (in the MLA class also when absent)."""
    return config.size("draft_vocab_size") is None


CUT = CutTensors(BY_OUTPUT, ("fc",), padded=("gate_proj", "up_proj", "down_proj", "o_proj"), unchecked=("d2t",))
"""The a-projections are joined before they are loaded, and have to fit; fc is a plain linear in the Llama class."""

CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length")
"""Keys that go before max_position_embeddings (srt/utils/hf_transformers/common.py, 0.5.23)."""


def derived_context(load: SimulatedLoad) -> tuple[int, str]:
    """How many positions SGLang takes the drafter to have, and a remark when the number is a class default.

    Positions times the rope factor, unless the original length stands beside it or the type is llama3: then the
    positions are the stretched ones (`get_context_length` of srt/utils/hf_transformers/common.py, 0.5.23).
    """
    first = next((key for key in CONTEXT_KEYS if load.config.raw(key) is not None), None)
    limit, absent = (load.config.size(first) or 0, "") if first else checks.positions(load)
    rope = load.built.rope
    stretched = rope.kind == "llama3" or "original_max_position_embeddings" in rope.scaling
    factor = rope.scaling.get("factor", 1)
    return (limit if stretched or not isinstance(factor, int | float) else int(limit * factor)), absent
