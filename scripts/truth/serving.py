"""A whole engine, target and drafter: what is asked of it and what it tells, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from draftconv.reference.accept_length import Counts
from truth.asking import EngineDied, Refusal

DEPTH = 3
"""K: drafted tokens per step, where a question names no other."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a whole engine did with some prompts.

    Attributes:
        tokens: generated tokens per request. `histograms`: verify steps with 0…K accepted, per request.
        steps: accepted tokens of every verify step, per request; empty where the engine tells their counts alone.
        drafts: every drafted token of the run, in the same order whenever the same is drafted.
        layers: boundaries the target handed out; empty where the engine does not tell.
    """

    tokens: tuple[tuple[int, ...], ...]
    histograms: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    drafts: tuple[int, ...] = field(repr=False)
    layers: tuple[int, ...]


class Run(Protocol):
    """Greedy text of exactly `length` tokens after each prompt, drafted `depth` at a time."""

    def __call__(
        self,
        draft: Path,
        target: Path,
        prompts: Sequence[Sequence[int]],
        length: int,
        dtype: str = "float32",
        depth: int = DEPTH,
    ) -> Ran | Refusal:
        """What came of it."""


def histograms(ran: Ran | Refusal) -> list[tuple[int, ...]]:
    """Verify steps with 0…K accepted, per request.

    Raises:
        EngineDied: it refused a drafter that it was expected to serve.
    """
    if isinstance(ran, Refusal):
        raise EngineDied(ran.error)
    return list(ran.histograms)


def counts(histograms: Sequence[Sequence[int]]) -> tuple[Counts, ...]:
    """The same as replay counts."""
    return tuple(Counts(tuple(histogram)) for histogram in histograms)
