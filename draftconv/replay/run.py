"""One pass over a trace: every arm replayed, every request recorded, nothing else kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from draftconv.replay.accept import accept_records
from draftconv.replay.replay import Arm, replay
from draftconv.replay.tally import Tally, record
from draftconv.report.records import Record
from draftconv.traces.trace import Trace, TraceEntry


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one pass found.

    Attributes:
        records: of every arm, request by request. `tallies`: of every candidate against the reference, where drafts
            are not drawn.
    """

    records: tuple[Record, ...]
    tallies: Mapping[str, Tally]


def run(
    trace: Trace,
    entries: Sequence[TraceEntry],
    reference: Arm,
    candidates: Sequence[Arm],
    others: Sequence[Arm] = (),
    *,
    depth: int,
    drawn_at: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Replay arms on requests of a trace.

    Args:
        candidates: are tallied against the reference, place by place.
        others: arms of which only the counts are wanted.
        drawn_at: the temperature that drafts are drawn at, where counts are expected ones and nothing is tallied; None
            where the most likely token is drafted.
        progress: told the tokens of each request that is done.

    Raises:
        UsageError, BadCheckpoint: as `replay` and `Trace.read`.
    """
    arms = (reference, *candidates, *others)
    boundaries = sorted({boundary for arm in arms for boundary in arm.boundaries})
    requests = (trace.read(entry, boundaries) for entry in entries)
    if drawn_at is not None:
        found = accept_records(trace, entries, arms, depth=depth, drawn_at=drawn_at, progress=progress)
        return ReplayResult(tuple(line.record(depth) for line in found), {})
    records: list[Record] = []
    tallies = {arm.name: Tally(depth) for arm in candidates}
    replayed = replay(arms, requests, boundaries, depth=depth, compared=len(candidates), done=progress)
    for request, (first, *rest) in replayed:
        records += (record(arm.name, request, done) for arm, done in zip(arms, (first, *rest), strict=True))
        for arm, done in zip(candidates, rest, strict=False):
            tallies[arm.name].add(request, first, done)
    return ReplayResult(tuple(records), tallies)
