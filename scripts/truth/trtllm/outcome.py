"""What the loader leaves behind: words that every part of the reading shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Shape = tuple[int, ...]
State = Literal["filled", "wrong", "initial", "uninitialised", "shared"]
"""filled from the file; filled with values that mean something else; left at what its constructor wrote; never
written; the target's own."""


class RaisedError(Exception):
    """The loader stops.

    Attributes:
        reason: what it stops at. `source`: which function raises.
    """

    def __init__(self, reason: str, source: str) -> None:
        super().__init__(reason)
        self.reason, self.source = reason, source


@dataclass(frozen=True, slots=True)
class Header:
    """A stored tensor: dtype as safetensors spells it."""

    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Target:
    """The facts of a target that the loader uses."""

    layers: int
    hidden: int
    vocab: int
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the built model.

    Attributes:
        sources: names of the stored tensors that were read for it.
    """

    name: str
    shape: Shape
    dtype: str
    state: State
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding as it is computed: radians per position of each pair, and both multipliers."""

    frequencies: tuple[float, ...]
    multiplier: float
    softmax: float
    interleaved: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one directory.

    Attributes:
        attention: which attention the class builds; empty when it raised before.
        captured: target layers whose outputs are kept, in the order they are concatenated.
        normed: what norms the captured states before fc. `post_norm`: which state the next step reads.
        raised: why the load stops, empty when it does not. `source`: of that, and of nothing else.
        dropped: stored tensors that nothing reads.
    """

    attention: Literal["", "llama", "mla"] = ""
    parameters: tuple[Parameter, ...] = ()
    dropped: tuple[str, ...] = ()
    captured: tuple[int, ...] = ()
    normed: Literal["plain", "fc_norm", "norm_before_fc"] = "plain"
    post_norm: bool = False
    rope: Rope | None = None
    eps: float | None = None
    layers: int = 0
    mapped: bool = False
    own_embedding: bool = False
    own_head: bool = False
    raised: str = ""
    source: str = ""
    quantized: Mapping[str, str] = field(default_factory=dict)
