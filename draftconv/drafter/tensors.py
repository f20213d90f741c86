"""The tensors of a drafter: canonical names, shapes and when each must exist.

Canonical names are the bare `layers.{i}.` spelling. Which tensors there are is told by the rows of the drafter's kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.drafter.kinds import kind_of
from draftconv.drafter.tensor_specs import Role, TensorSpec

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""The tables: a row per token of the target, a row per token that can be drafted."""


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """What the facts say of one canonical tensor."""

    shape: tuple[int, ...]
    role: Role


OPTIONAL = frozenset({"t2d"})
"""Tensors that follow from others (t2d from d2t), so no file has to hold them."""


def expected(facts: Facts) -> dict[str, ExpectedTensor]:
    """Every canonical tensor that a drafter with these facts has, with its shape and role.

    Tensors in `OPTIONAL` are included; a file may lack them.
    """
    tensors: dict[str, ExpectedTensor] = {}
    for spec in kind_of(facts).rows:
        if spec.when(facts):
            for name, layer in _instances(spec, facts):
                tensors[name] = ExpectedTensor(_shape(spec.shape, _symbols(facts, layer)), spec.role)
    return tensors


def _instances(spec: TensorSpec, facts: Facts) -> Iterator[tuple[str, int]]:
    match spec.layers:
        case "none":
            yield spec.name, 0
        case "aux":
            for index in range(facts.aux):
                yield spec.name.replace("{a}", str(index)), 0
        case _:
            start, stop = {"first": (0, 1), "later": (1, facts.layers), "all": (0, facts.layers)}[spec.layers]
            for layer in range(start, stop):
                yield spec.name.replace("{i}", str(layer)), layer


def _shape(symbols: tuple[str, ...], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(math.prod(values[part] for part in dimension.split("*")) for dimension in symbols)


def _symbols(facts: Facts, layer: int) -> dict[str, int]:
    common = {
        "H": facts.hidden,
        "Ht": facts.target_hidden,
        "A": facts.aux,
        "V": facts.vocab,
        "Vd": facts.draft_vocab,
        "I": facts.intermediate,
        "X": 2 * facts.hidden if layer == 0 else facts.hidden,
    }
    match facts.attention:
        case Gqa(heads, kv_heads, head_dim):
            return common | {"Nh": heads, "Nkv": kv_heads, "D": head_dim}
        case Mla(heads, q_lora, kv_lora, nope, rope, v):
            return common | {
                "Nh": heads,
                "Rq": q_lora or 0,
                "Rkv": kv_lora,
                "Rkva": kv_lora + rope,
                "Dqk": nope + rope,
                "Dkv": nope + v,
                "Dv": v,
            }
