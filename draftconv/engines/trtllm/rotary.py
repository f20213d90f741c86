"""The rotary embedding that TensorRT-LLM computes: RopeParams of _torch/attention_backend/interface.py, 1.3.0rc.

Its config comes out of transformers 5, or of the tree's own class for some model types, and the two read the
spellings otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.drafter.config import Config
from draftconv.drafter.facts import Rope, Scalar
from draftconv.drafter.rope import DEFAULT_THETA, read_rope
from draftconv.engines.trtllm.config_types import OWN_TYPES

NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
"""Kind → keys without which transformers' validation stops."""

KINDS = frozenset({"default", "none", "mrope", *NEEDED})

PLAIN = frozenset({"default", "none", "mrope"})
"""Kinds whose tables are those without scaling."""

READ: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}
"""Kind → keys that the tables are made of; an attention_factor is not among them."""

_SCALED = frozenset({"partial_rotary_factor", "mrope_section", "factor"})

FILLED: Mapping[str, Scalar] = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}


def rope_of(config: Config, *, mla: bool) -> Rope:
    """The embedding of every layer."""
    section = _section(config)
    kind = _kind(section)
    own = config.text("model_type") in OWN_TYPES
    above, below = config.number("rope_theta"), section.number("rope_theta")
    # load_pretrained_config clears a section that holds nothing but a base, and then the top level wins.
    cleared = kind == "default" and not _SCALED & {*section.data, *config.data} and config.text("model_type") != "phi3"
    if own and not config.has("rope_theta"):
        above = below if cleared and below is not None else DEFAULT_THETA
    order = (above, below) if own or cleared else (below, above)
    theta = next((value for value in order if value is not None), DEFAULT_THETA)
    written = {"rope_parameters": {**section.data, "rope_theta": theta}}
    rope, _, _ = read_rope(Config(written, config.where), mla=mla)
    kept = {key: rope.scaling[key] for key in READ.get(kind, ()) if key in rope.scaling}
    share = None if mla else config.number("rotary_pct") or config.number("partial_rotary_factor")
    if share is not None and share != 1:
        kept["partial_rotary_factor"] = share
    return Rope(theta, "interleaved" if mla else "halves", kind if kind in READ else "default", kept)


def alike(rope: Rope) -> Rope:
    """The same embedding with what goes without saying: to compare two."""
    if rope.kind in PLAIN or (rope.kind == "dynamic" and "alpha" not in rope.scaling):
        kept = {key: value for key, value in rope.scaling.items() if key == "partial_rotary_factor"}
        return Rope(rope.theta, rope.pairs, "default", kept)
    filled = {**FILLED, **rope.scaling} if rope.kind == "yarn" else dict(rope.scaling)
    return Rope(rope.theta, rope.pairs, rope.kind, filled)


def faults(config: Config) -> list[str]:
    """What stops the config's validation, or the tables."""
    section = _section(config)
    if not section.data:
        return []
    kind = _kind(section)
    if kind not in KINDS:
        return [f"rope type {kind}"]
    own_words = config.text("model_type") in OWN_TYPES and bool(config.section("rope_parameters").data)
    positions = config.raw("max_position_embeddings") if config.has("max_position_embeddings") else 1
    given = {"original_max_position_embeddings"} if not own_words and kind in ("llama3", "yarn", "longrope") else set()
    lacking = [f"no {key} of {kind}" for key in NEEDED.get(kind, ()) if key not in section.data and key not in given]
    if kind == "yarn" and not positions:
        lacking.append("YaRN with max_position_embeddings: null")
    return lacking


def _section(config: Config) -> Config:
    """The spelling that wins: rope_scaling for transformers, rope_parameters for the tree's own class."""
    keys = ("rope_scaling", "rope_parameters")
    if config.text("model_type") in OWN_TYPES:
        keys = ("rope_parameters", "rope_scaling")
    return next((section for key in keys if (section := config.section(key)).data), Config({}, config.where))


def _kind(section: Config) -> str:
    return (section.text("type") or section.text("rope_type") or "default").lower()
