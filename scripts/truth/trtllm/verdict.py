"""An outcome beside what was trained: loads, mis-read in these aspects, or refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from truth.trtllm.outcome import Outcome, Parameter, Rope

BEFORE_FC = re.compile(r"^(model\.)?(fc_norm|input_norm)\.")
"""What a drafter that is fused otherwise leaves unread, which is judged as that."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a drafter is.

    Attributes:
        boundaries: of the target's residual stream, in the order of fc's columns; boundary b enters layer b.
        parts: stored tensors that belong to it, by the names they are stored under.
        normed: what norms the captured states, each by itself, all together, or both.
        map: whether draft ids become target ids by a stored map.
        differs: whether the embedding is known to be another than the target's.
    """

    attention: Literal["llama", "mla"]
    layers: int
    boundaries: tuple[int, ...]
    parts: frozenset[str]
    rope: Rope
    eps: float
    vocab: int
    normed: Literal["plain", "fc_norm", "norm_before_fc", "both"] = "plain"
    post_norm: bool = False
    norm_before_residual: bool = False
    activation: str = "silu"
    window: int | None = None
    map: bool = False
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The second reading's word on a directory; `aspects` of a mis-read one."""

    status: Literal["loads", "mis-read", "refused"]
    aspects: tuple[str, ...] = ()
    reason: str = ""
    source: str = ""

    @property
    def words(self) -> str:
        """As the first reading's verdict is worded for the comparison."""
        return f"{self.status}: {', '.join(self.aspects)}" if self.aspects else self.status


def judge(outcome: Outcome, trained: Trained, vocab: int) -> Verdict:
    """What an outcome is worth beside a target of `vocab` tokens."""
    if outcome.raised:
        return Verdict("refused", (), outcome.raised, outcome.source)
    found = dict(reversed(tuple(_apart(outcome, trained, vocab))))
    if not found:
        return Verdict("loads")
    aspects = tuple(sorted(found))
    return Verdict("mis-read", aspects, "; ".join(found[aspect] for aspect in aspects))


def _apart(outcome: Outcome, trained: Trained, vocab: int) -> Iterator[tuple[str, str]]:
    """Aspect → what is otherwise, several times where several things are."""
    boundaries = tuple(layer + 1 for layer in outcome.captured)
    if boundaries != trained.boundaries:
        yield "layers", f"captures boundaries {boundaries}"
    if outcome.normed != trained.normed:
        yield "fusion", f"{outcome.normed} instead of {trained.normed}"
    if outcome.post_norm != trained.post_norm:
        yield "feedback", f"post-norm {outcome.post_norm}"
    if trained.norm_before_residual:
        yield "residual", "the residual is the raw state"
    if trained.activation != "silu":
        yield "activation", f"SiLU instead of {trained.activation}"
    if trained.window is not None:
        yield "window", "attention sees everything"
    if outcome.eps != trained.eps:
        yield "eps", f"{outcome.eps} instead of {trained.eps}"
    if trained.vocab != vocab:
        yield "vocabulary", f"{trained.vocab} tokens beside the target's {vocab}"
    if outcome.rope is None or not _same(outcome.rope, trained.rope):
        yield "rope", "positions turn otherwise"
    if outcome.mapped != trained.map:
        yield "d2t", f"a map {'is' if outcome.mapped else 'is not'} added to draft ids"
    if trained.differs and not outcome.own_embedding:
        yield "embedding", "the target's embedding replaces another"
    yield from _weights(outcome, trained)


def _weights(outcome: Outcome, trained: Trained) -> Iterator[tuple[str, str]]:
    for parameter in outcome.parameters:
        unused = parameter.name == "model.input_norm.weight" and outcome.normed == "fc_norm"
        if parameter.state not in ("filled", "shared") and not unused:
            yield "weights", _says(parameter)
    for name in outcome.dropped:
        if name in trained.parts and not BEFORE_FC.search(name):
            yield "weights", f"{name} is dropped"


def _says(parameter: Parameter) -> str:
    match parameter.state:
        case "wrong":
            return f"{parameter.name} is filled with something else"
        case "initial":
            return f"{parameter.name} keeps what it was made with"
        case _:
            return f"{parameter.name} is never written"


def _same(theirs: Rope, trained: Rope) -> bool:
    if theirs.interleaved != trained.interleaved or len(theirs.frequencies) != len(trained.frequencies):
        return False
    pairs = zip(
        (*theirs.frequencies, theirs.multiplier, theirs.softmax),
        (*trained.frequencies, trained.multiplier, trained.softmax),
        strict=True,
    )
    return all(math.isclose(a, b, rel_tol=1e-5) for a, b in pairs)
