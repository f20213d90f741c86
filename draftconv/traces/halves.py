"""A trace in two halves: one that something is chosen by, and one that judges it and has not been looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftconv.errors import UsageError
from draftconv.traces.trace import TraceEntry


@dataclass(frozen=True, slots=True)
class Halves:
    """Requests of a trace, in its order; the turns of a conversation are all in one half."""

    choosing: tuple[TraceEntry, ...]
    judging: tuple[TraceEntry, ...]


def split_halves(entries: Sequence[TraceEntry]) -> Halves:
    """The same halves of the same trace: conversations of each category in turns, first to last.

    Raises:
        UsageError: there are fewer than two conversations.
    """
    category_of = {entry.cluster: entry.category for entry in entries}
    if len(category_of) < 2:
        raise UsageError(
            f"the trace holds {len(category_of)} conversation",
            why="what one half chooses, the other half judges",
            cure="make a trace of more prompts",
        )
    ordered = sorted(category_of, key=lambda cluster: category_of[cluster])  # stable: in the trace's order
    judging = {*ordered[1::2]}
    return Halves(
        tuple(entry for entry in entries if entry.cluster not in judging),
        tuple(entry for entry in entries if entry.cluster in judging),
    )
