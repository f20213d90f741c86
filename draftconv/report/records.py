"""records.jsonl: one line per request and arm, from which anyone can compute the verdict again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from draftconv.checkpoint import show
from draftconv.errors import BadReport
from draftconv.reference.accept_length import Counts
from draftconv.report.contexts import ascending
from draftconv.report.statistics import Pair

FILE = "records.jsonl"


@dataclass(frozen=True, slots=True)
class Record:
    """What one arm did on one request.

    Attributes:
        arm: name of the drafter. `id`: of the request, unique within an arm.
        cluster: what is resampled as one: a prompt with all its turns.
        prompt: prompt tokens. `counted`: generated tokens that count.
        tokens: SHA-256 of its token ids, prompt and text, as little-endian int64: the same text has the same hash.
        contexts: its counts by `contexts.context_of` the tokens that were known when a step started, ascending; empty
            where nobody said at which position steps start, as of an engine's counts.
    """

    arm: str
    id: str
    cluster: str
    category: str
    prompt: int
    counted: int
    counts: Counts
    tokens: str
    contexts: Mapping[str, Counts] = field(default_factory=dict)

    @property
    def request_key(self) -> tuple[str, str, str]:
        """The request, as both arms must name it: id, cluster, category."""
        return self.id, self.cluster, self.category


def lines(records: Iterable[Record]) -> Iterator[str]:
    """The lines of records.jsonl, ASCII, without their ends."""
    for record in records:
        counts = record.counts
        document = {
            "arm": record.arm,
            "id": record.id,
            "cluster": record.cluster,
            "category": record.category,
            "prompt_tokens": record.prompt,
            "counted_tokens": record.counted,
            "depth": counts.depth,
            "steps": counts.steps,
            "accepted": counts.accepted,
            "histogram": counts.histogram,
            "tokens": record.tokens,
        }
        if record.contexts:
            document["contexts"] = {name: counts.histogram for name, counts in record.contexts.items()}
        yield json.dumps(document, ensure_ascii=True)


def read_lines(data: bytes) -> Iterator[Record]:
    """The records that records.jsonl holds.

    Raises:
        BadReport: a line is no record, or its figures contradict each other.
    """
    for number, line in enumerate(data.splitlines(), 1):
        yield _read(line, f"{FILE}, line {number}")


def _read(line: bytes, where: str) -> Record:
    from draftconv.report.schema import RecordLine, parse

    record = parse(RecordLine, line, where)
    counts = Counts(record.histogram)
    if (record.depth, record.steps, record.accepted) != (counts.depth, counts.steps, counts.accepted):
        raise BadReport(
            f"{where}: depth, steps or accepted contradict the histogram",
            why="nobody could say which of them was measured",
            cure="write the report again",
        )
    contexts = {name: Counts(histogram) for name, histogram in record.contexts.items()}
    if contexts and not _adds_up(contexts.values(), counts):
        raise BadReport(
            f"{where}: its contexts contradict the histogram",
            why="they are to be parts of it",
            cure="write the report again",
        )
    return Record(
        arm=record.arm,
        id=record.id,
        cluster=record.cluster,
        category=record.category,
        prompt=record.prompt_tokens,
        counted=record.counted_tokens,
        counts=counts,
        tokens=record.tokens,
        contexts=contexts,
    )


def _adds_up(parts: Iterable[Counts], whole: Counts) -> bool:
    """Whether counts are those of all parts together; expected ones but for rounding."""
    parts = tuple(parts)
    if any(part.depth != whole.depth for part in parts):
        return False
    sums = Counts.pooled(parts).histogram
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in zip(sums, whole.histogram, strict=True))


def paired(records: Iterable[Record], reference: str, candidate: str) -> tuple[Pair, ...]:
    """Every request of the reference with the same request of the candidate, in the reference's order.

    Raises:
        BadReport: an arm has no records, one twice, or they are not of the same requests.
    """
    arms: Mapping[str, dict[str, Record]] = {reference: {}, candidate: {}}
    for record in records:
        if (arm := arms.get(record.arm)) is None:
            continue
        if record.id in arm:
            raise BadReport(
                f"{FILE} has request {show(record.id)} of {show(record.arm)} twice",
                why="it would be counted twice",
                cure="write the report again",
            )
        arm[record.id] = record
    ours, theirs = arms[reference], arms[candidate]
    if not ours or {r.request_key for r in ours.values()} != {r.request_key for r in theirs.values()}:
        raise BadReport(
            f"{FILE} does not hold the same requests of {show(reference)} and {show(candidate)}",
            why="only the same requests on both arms can be compared",
            cure="write the report again",
        )
    return tuple(Pair(id, r.cluster, r.category, r.counts, theirs[id].counts) for id, r in ours.items())


def paired_by_context(records: Iterable[Record], reference: str, candidate: str) -> dict[str, tuple[Pair, ...]]:
    """As `paired`, by context, ascending: the requests of which both arms have steps there, with these steps.

    Empty where a request with steps does not say where they start: some would be taken for all.

    Raises:
        BadReport: as `paired`.
    """
    records = [record for record in records if record.arm in (reference, candidate)]
    pairs = paired(records, reference, candidate)
    if any(record.counts.steps and not record.contexts for record in records):
        return {}
    ours, theirs = (
        {record.id: record.contexts for record in records if record.arm == arm} for arm in (reference, candidate)
    )
    found = {}
    for context in ascending(name for record in records for name in record.contexts):
        here = (
            replace(pair, reference=ours[pair.id][context], candidate=theirs[pair.id][context])
            for pair in pairs
            if context in ours[pair.id] and context in theirs[pair.id]
        )
        if counted := tuple(pair for pair in here if pair.counted):
            found[context] = counted
    return found


def run_twice(records: Iterable[Record], reference: str, name: str) -> tuple[Pair, ...]:
    """The reference with itself: the requests that arm `name`, the reference run once more, has answered.

    Raises:
        BadReport: as `paired`.
    """
    records = tuple(records)
    ids = {record.id for record in records if record.arm == name}
    return paired((r for r in records if r.arm != reference or r.id in ids), reference, name)
