"""What readers cannot express: one table, and the rows of it that a reader has.

`lone` marks what a reader knows in one combination only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.drafter.tensor_specs import When
from draftconv.layouts.base import Refusal

DROPPED = "the tensors would be dropped without a message"
DENOMINATORS = "fc_norm and norm_before_fc have different denominators and cannot be rewritten into each other"


YARN_KEYS = frozenset(
    {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
)
"""What a YaRN embedding is made of in TorchSpec and SpecForge."""


@dataclass(frozen=True, slots=True)
class UnsupportedFeature:
    """One row: when a drafter needs it, what to say of a reader without it, why, and a cure that always helps."""

    holds: When
    what: str
    why: str
    cure: str = ""


def _gqa(facts: Facts) -> Gqa | None:
    return facts.attention if isinstance(facts.attention, Gqa) else None


def _mla(facts: Facts) -> Mla | None:
    return facts.attention if isinstance(facts.attention, Mla) else None


LIMITS: Mapping[str, UnsupportedFeature] = {
    "both-fusions": UnsupportedFeature(
        lambda f: f.fusion == "both",
        "fc_norm and norm_before_fc cannot be served together",
        "no trainer writes both, and of the engines some apply one after the other and some only fc_norm",
        "remove the one that was not trained"),
    "activation": UnsupportedFeature(
        lambda f: f.activation != "silu",
        "drafter MLPs are silu(gate) * up in every engine",
        "another hidden_act is not read or refused",
        "retrain with hidden_act silu"),
    "norm_before_residual": UnsupportedFeature(
        lambda f: f.norm_before_residual,
        "{reader} cannot add the normed state as residual (norm_before_residual: true)",
        "it does not read the flag and always adds the raw state"),
    "norm_before_fc": UnsupportedFeature(
        lambda f: f.fusion == "norm_before_fc",
        "{reader} has no single norm over the captured states (norm_before_fc, input_norm)",
        DENOMINATORS),
    "fc_norm": UnsupportedFeature(
        lambda f: f.fusion == "fc_norm",
        "{reader} has no EAGLE-3.1 norms before fc",
        DENOMINATORS),
    "post-norm": UnsupportedFeature(
        lambda f: f.feedback == "post-norm",
        "{reader} always feeds back the pre-norm state",
        "losing the post-norm feedback costs a third of the acceptance"),  # measured on vLLM 0.32.0
    "qkv-bias": UnsupportedFeature(
        lambda f: bool((g := _gqa(f)) and g.qkv_bias),
        "{reader} has no q/k/v biases in its drafter",
        DROPPED),
    "o-bias": UnsupportedFeature(
        lambda f: bool((g := _gqa(f)) and g.o_bias),
        "{reader} has no bias on o_proj in its drafter",
        "the tensor would be dropped without a message"),
    "lone-o-bias": UnsupportedFeature(
        lambda f: bool((g := _gqa(f)) and g.o_bias and not g.qkv_bias),
        "{reader} cannot have a bias on o_proj without biases on q, k and v",
        "one flag, attention_bias, builds all four, and the missing three would be uninitialised"),
    "qk-norm": UnsupportedFeature(
        lambda f: bool((g := _gqa(f)) and g.qk_norm),
        "{reader} has no q_norm and k_norm in its drafter",
        "the tensors would be dropped without a message and attention would run unnormed"),
    "mlp-bias": UnsupportedFeature(
        lambda f: f.mlp_bias,
        "{reader} has no MLP biases in its drafter",
        DROPPED),
    "fc-bias": UnsupportedFeature(
        lambda f: f.fc_bias,
        "{reader} drops fc.bias",
        "its fusion layer is built without a bias and the loader skips the tensor silently"),
    "lone-fc-bias": UnsupportedFeature(
        lambda f: bool((g := _gqa(f)) and f.fc_bias and not g.o_bias),
        "{reader} cannot have a bias on fc without one on o_proj in its Llama class",
        "one flag, bias, builds both, and the missing one would be uninitialised"),
    "window": UnsupportedFeature(
        lambda f: f.window is not None,
        "{reader} has no sliding window in its drafter",
        "it would attend to the whole context"),
    "three-states": UnsupportedFeature(
        lambda f: f.aux != 3,
        "{reader} takes exactly three captured states",
        "its fc is built for three, and the weights of this drafter would not fit"),
    "wide-states": UnsupportedFeature(
        lambda f: f.target_hidden != f.hidden,
        "a drafter of {reader} is as wide as its target",
        "it does not read target_hidden_size: fc and fc_norm are built for hidden_size, and the weights would not fit"),
    "lent-head": UnsupportedFeature(
        lambda f: not f.own_head,
        "{reader} always has a head of the drafter's own, and this drafter uses the target's",
        "the missing lm_head would be left as it was made, or training would not start"),
    "yarn-factors": UnsupportedFeature(
        lambda f: f.rope.kind == "yarn" and f.rope.scaling.keys() != YARN_KEYS,
        "{reader} makes YaRN of six numbers, and this drafter's rope has others or not all of them",
        f"its class takes {', '.join(sorted(YARN_KEYS))} and no other key"),
    "layers": UnsupportedFeature(
        lambda f: f.layers > 1,
        "{reader} builds one layer only",
        "the other layers would be dropped"),
    "mla": UnsupportedFeature(
        lambda f: _mla(f) is not None,
        "{reader} has no MLA drafter",
        "its only EAGLE-3 models are Llama-style"),
    "mla-layers": UnsupportedFeature(
        lambda f: _mla(f) is not None and f.layers > 1,
        "{reader}'s MLA drafter has one layer only",
        "it raises `EAGLE3 currently only supports 1 layer`"),
    "mla-plain-query": UnsupportedFeature(
        lambda f: bool((m := _mla(f)) and m.q_lora is None),
        "{reader} cannot load an MLA drafter with an uncompressed query (q_lora_rank null)",
        "it fuses q_a_proj with kv_a_proj_with_mqa unconditionally",
        "retrain with q_lora_rank"),
    "mla-norm_before_fc": UnsupportedFeature(
        lambda f: _mla(f) is not None and f.fusion == "norm_before_fc",
        "{reader}'s MLA drafter has no norm_before_fc",
        "the flag is not implemented in that class",
        "retrain with fc_norm"),
    "mla-reduced": UnsupportedFeature(
        lambda f: _mla(f) is not None and f.reduced_vocab,
        "{reader} cannot load a reduced vocabulary beside MLA",
        "its DeepSeek weight loader walks into d2t and stops with a KeyError (read, not run)"),
    "mla-half-split": UnsupportedFeature(
        lambda f: _mla(f) is not None and f.rope.pairs == "halves",
        "{reader} rotates MLA in interleaved pairs only",
        "rope_interleave: false is not read"),
}  # fmt: skip


def lacks(reader: str, *names: str) -> tuple[Refusal, ...]:
    """The rows that a reader has."""
    rows = (LIMITS[name] for name in names)
    return tuple(Refusal(limit.holds, limit.what.format(reader=reader), limit.why, limit.cure) for limit in rows)
