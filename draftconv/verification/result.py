"""What `verify` found: rows, a verdict, and what would settle what only the record says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from draftconv.display import Block, Displayed, named, table
from draftconv.drafter.drafter import Drafter
from draftconv.engines import EngineSpec, parse_engine
from draftconv.verification.compared import ComparedItem, Outcome

Record = Literal["believed", "absent", "not believed", "of another source"]
"""`believed` is that a record belongs to the output and names this source; not that what it says is true."""

RECORDS: Mapping[Record, str] = {
    "absent": "There is no draftconv.json, so nothing is declared.",
    "not believed": "The draftconv.json is another directory's or something was edited, so it declares nothing.",
    "of another source": "The draftconv.json names another source, so what it declares does not count.",
}
"""What follows where a record declares nothing."""


WORST: tuple[Outcome, ...] = ("different", "claimed", "declared", "equal")
"""The order in which rows are shown."""


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Displayed):
    """The result of `verify`."""

    tensors: tuple[ComparedItem, ...]
    facts: tuple[ComparedItem, ...]
    directory: tuple[ComparedItem, ...]
    """What readers would make of the output as a whole: its record, its files, the engines it was written for."""
    record: Record
    """Whether a draftconv.json belongs to the output and names this source; only then its steps are made again."""
    output: Drafter
    source: Drafter
    cures: tuple[str, ...] = ()
    """What would have to be given for that which only the record says to be made again."""

    @property
    def passed(self) -> bool:
        return self.result == "pass"

    @property
    def rows(self) -> tuple[ComparedItem, ...]:
        """Everything that was compared."""
        return (*self.tensors, *self.facts, *self.directory)

    @property
    def engines(self) -> tuple[EngineSpec, ...]:
        """The engines that were asked and read it rightly."""
        return tuple(parse_engine(row.what) for row in self.directory if row.outcome == "equal")

    @property
    def result(self) -> Literal["pass", "claimed", "fail"]:
        """Whether all is equal or was made again, something is only claimed, or something differs."""
        outcomes = {row.outcome for row in self.rows}
        return "fail" if "different" in outcomes else "claimed" if "claimed" in outcomes else "pass"

    def brief(self) -> Iterator[str]:
        """The verdict of which output and source, what is equal, and how much else differs."""
        yield f"{self.result}: {named(self.output.checkpoint.name)} of {named(self.source.checkpoint.name)}"
        yield f"{_count_equal(self.tensors)} of {len(self.tensors)} tensors equal"
        outcomes: tuple[Outcome, ...] = ("declared", "claimed", "different")
        for outcome in outcomes:
            if count := sum(row.outcome == outcome for row in self.rows):
                yield f"{count} {outcome}"

    def blocks(self) -> Iterator[Block]:
        """The verdict, how much is equal, who reads it rightly, what to give, and every difference, the worst first."""
        yield f"Verified: {self.result}"
        tensors = f"{_count_equal(self.tensors)} of {len(self.tensors)} tensors equal in every bit"
        yield f"{tensors}, {_count_equal(self.facts)} of {len(self.facts)} facts equal."
        if self.engines:
            yield f"Read rightly by {', '.join(map(str, self.engines))}."
        if self.record in RECORDS:
            yield RECORDS[self.record]
        if claimed := sum(row.outcome == "claimed" for row in self.rows):
            yield f"{claimed} claimed: only the draftconv.json of the output says so, and a record is no evidence."
        yield from (f"To have it made again: {cure}." for cure in self.cures)
        if rows := [(row.outcome, row.what, row.how) for row in self.rows if row.outcome != "equal"]:
            yield table("Differences", "", ("", "what", "how"), sorted(rows, key=lambda row: WORST.index(row[0])))


def _count_equal(rows: Sequence[ComparedItem]) -> int:
    return sum(row.outcome == "equal" for row in rows)
