"""Rows of the table of tensors: how a kind of drafter says which tensors it has, of what shape, and when.

Shape symbols (element counts):
    H hidden · Ht width of a captured state · A captured states · V, Vd target and draft
    vocabulary · I MLP width · X input of attention (2H in layer 0, H later) · Nh, Nkv heads
    · D head width · Rq, Rkv latent ranks · Dqk = nope+rope · Dkv = nope+v · Rkva = Rkv+rope
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from draftconv.drafter.facts import Facts, Gqa, Mla

Role = Literal["embed", "head", "fc", "norm", "attention", "mlp", "map"]
Layers = Literal["none", "first", "later", "all", "aux"]
When = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One line of the table; `{i}` in the name is a layer, `{a}` a captured state."""

    name: str
    shape: tuple[str, ...]
    role: Role
    layers: Layers = "all"
    when: When = lambda _: True


def gqa(test: Callable[[Gqa], bool] = lambda _: True) -> When:
    """Drafters with Llama-style attention of which this is true."""
    return lambda facts: isinstance(facts.attention, Gqa) and test(facts.attention)


def mla(test: Callable[[Mla], bool] = lambda _: True) -> When:
    """Drafters with latent attention of which this is true."""
    return lambda facts: isinstance(facts.attention, Mla) and test(facts.attention)
