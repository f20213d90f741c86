"""Pairs whose statistics can be computed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

from draftconv.reference.accept_length import Counts
from draftconv.report.statistics import Pair

STEPS = 100


def counts(accepted: int, steps: int = STEPS) -> Counts:
    """One token drafted per step, so many of them accepted: accept length 1 + accepted / steps."""
    return Counts((steps - accepted, accepted))


def pair(name: str, reference: int, candidate: int, *, cluster: str = "", category: str = "all") -> Pair:
    return Pair(name, cluster or name, category, counts(reference), counts(candidate))


def pairs(
    number: int, candidate: int | Iterable[int] = 80, *, reference: int = 80, category: str = "all", start: int = 0
) -> list[Pair]:
    """Requests of 100 steps: `reference` accepted tokens in each, the candidate's taken in turn."""
    values = cycle([candidate] if isinstance(candidate, int) else candidate)
    return [pair(f"{category}-{start + i}", reference, next(values), category=category) for i in range(number)]
