"""Servers that write the text of a trace and count as a drafter does that is read in some way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from draftconv.engines.replays import Misreading
from draftconv.live.doctor.asking import CountedText
from draftconv.live.doctor.readings import AS_TRAINED, ServerReading
from draftconv.reference.accept_length import Counts
from draftconv.replay.accept import accept_records
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.misreadings import MISREADINGS, MisreadSubject, lender
from draftconv.replay.replay import Arm
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.traces.trace import Trace, open_trace
from tests.engines.stub import Stub, serving
from tests.reference.test_fixtures import DATA
from tests.replay.test_controls import opened
from tests.traces.recorded import described

K = 3


@dataclass(frozen=True, slots=True)
class Patient:
    """A fixture on a trace of its target.

    Attributes:
        records: by the name of a reading.
    """

    name: str
    trace: Trace
    subject: MisreadSubject

    @classmethod
    def of(cls, name: str, path: Path, dtype: str = "float32") -> Patient:
        trace, drafter = open_trace(path), opened(name)
        arm = load_arm(name, drafter, LoadSettings(cache(trace.table), dtype=dtype))
        target = described(name.partition("-")[0])
        return cls(name, trace, MisreadSubject(arm, target.layers, trace.about.boundaries, lend=lender(trace, target)))

    def arms(self, only: Sequence[Misreading] = tuple(MISREADINGS)) -> dict[str, Arm]:
        """The drafter as it was trained, and under every mis-reading that means something for it."""
        found: dict[str, Arm] = {AS_TRAINED: replace(self.subject.arm, name=AS_TRAINED)}
        for name in only:
            outcome = MISREADINGS[name].apply(self.subject)
            if isinstance(outcome, Arm):
                found[name] = replace(outcome, name=name)
        return found

    def records(self, arms: Mapping[str, Arm], depth: int = K) -> dict[str, dict[str, AcceptanceRecord]]:
        """What each of them is accepted, by request."""
        found: dict[str, dict[str, AcceptanceRecord]] = {name: {} for name in arms}
        for record in accept_records(self.trace, self.trace.entries, list(arms.values()), depth=depth):
            found[record.arm][record.id] = record
        return found

    def readings(self, arms: Mapping[str, Arm]) -> list[ServerReading]:
        """The same as the doctor has them."""
        return [ServerReading(name, name, records) for name, records in self.records(arms).items()]

    def counted(self, arm: Arm) -> list[CountedText]:
        """What a server counts that has this arm."""
        ((_, records),) = self.records({arm.name: arm}).items()
        return [CountedText(one.id, one.counted, one.counts(K)) for one in records.values()]


@contextmanager
def misreading(
    patient: Patient, arm: Arm | None = None, *, engine: Any = "vllm", reach: int | None = None, **fields: Any
) -> Iterator[Stub]:
    """A server that reads the patient as this arm, by default as it was trained.

    Args:
        reach: tokens that its drafter may have.
    """
    arm = arm or patient.subject.arm
    depth = fields.get("depth", K)
    ((_, records),) = patient.records({arm.name: arm}, depth).items()
    texts = {
        tuple(patient.trace.tokens(entry)[: entry.prompt]): (patient.trace.tokens(entry)[entry.prompt :], entry.id)
        for entry in patient.trace.entries
    }

    def write(prompt: list[int], length: int) -> list[int]:
        return list(texts[tuple(prompt)][0][:length])

    def accept(prompt: list[int], length: int, _: float, depth: int) -> list[int]:
        record = records[texts[tuple(prompt)][1]]
        accepted = [min(count, depth) for count in record.accepted[: length - 1]]
        found, passed = list[int](), len(prompt)
        while (root := len(found) + sum(found)) < len(accepted):
            found.append(accepted[root] if reach is None or passed + depth <= reach else 0)
            passed = len(prompt) + 1 + root + depth
        return found

    with serving(Stub(engine, **{"write": write, "accept": accept} | fields)) as stub:
        yield stub


def pooled(texts: Sequence[CountedText]) -> Counts:
    return Counts.pooled(text.counts for text in texts)


TARGETS = {family: DATA / "targets" / family for family in ("llama", "mla")}
