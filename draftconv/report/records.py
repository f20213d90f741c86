"""records.jsonl: one line per request and arm, from which anyone can compute the verdict again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from draftconv.checkpoint import show
from draftconv.errors import BadReport
from draftconv.reference.accept_length import Counts
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
    """

    arm: str
    id: str
    cluster: str
    category: str
    prompt: int
    counted: int
    counts: Counts
    tokens: str

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
    return Record(
        arm=record.arm,
        id=record.id,
        cluster=record.cluster,
        category=record.category,
        prompt=record.prompt_tokens,
        counted=record.counted_tokens,
        counts=counts,
        tokens=record.tokens,
    )


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


def run_twice(records: Iterable[Record], reference: str, name: str) -> tuple[Pair, ...]:
    """The reference with itself: the requests that arm `name`, the reference run once more, has answered.

    Raises:
        BadReport: as `paired`.
    """
    records = tuple(records)
    ids = {record.id for record in records if record.arm == name}
    return paired((r for r in records if r.arm != reference or r.id in ids), reference, name)
