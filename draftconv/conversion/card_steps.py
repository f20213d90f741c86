"""What a card tells of the steps behind an output: the source that a person has, and rows that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from draftconv.conversion.provenance import FILE
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts
from draftconv.errors import BadCheckpoint

Step = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Steps:
    """An output and what it was made from, the newest first.

    Attributes:
        own: from the output to the source that is named: what was pruned on the way to the last step is no drafter that
            anybody has to have.
    """

    every: Sequence[Step]
    own: Sequence[Step]

    @classmethod
    def of(cls, record: Step) -> Steps:
        """The steps that a record tells of."""
        every = (record, *cast(Sequence[Step], record["earlier"]))
        count = 1
        while count < len(every) and every[count].get("pruning"):
            count += 1
        return cls(every, every[:count])

    @property
    def source(self) -> Step:
        """What the first of its own steps began with."""
        return cast(Step, self.own[-1]["source"])

    def known_as(self, name: str) -> str:
        """A source by its name, or by that of the drafter that it was pruned from."""
        return str(self.source["name"]) if name in {cast(Step, step["source"])["name"] for step in self.own} else name

    @property
    def done(self) -> str:
        """What was done to the source, in a word or two."""
        words = ("pruned" * self._has("pruning"), "quantized" * bool(self.own[0].get("quantization")))
        return " and ".join(filter(None, words)) or "converted"

    @property
    def calibrated(self) -> bool:
        """Whether anything was measured on a trace, so that only with it everything can be made again."""
        return any(cast(Step, step.get("quantization") or {}).get("calibration") for step in self.own)

    def _has(self, key: str) -> bool:
        return any(step.get(key) for step in self.own)


@dataclass(frozen=True, slots=True)
class CoveredText:
    """A kind of text: tokens that chose rows, tokens that were held out, and the share of those that has a row."""

    name: str
    tokens: int
    held: int
    covered: float


@dataclass(frozen=True, slots=True)
class PrunedRows:
    """Rows of a head that were left out.

    Attributes:
        kept, rows: that stay, and that there were. `forced`: of those that stay, whatever the text says.
        trace: whose accepted tokens chose too; empty where there was none.
    """

    kept: int
    rows: int
    forced: int
    domains: tuple[CoveredText, ...]
    trace: str


def pruned_rows(steps: Steps, facts: Facts) -> PrunedRows | None:
    """What the newest pruning left out; None where nothing was pruned, or a record of it is malformed."""
    found = next((pruning for step in steps.every if (pruning := step.get("pruning"))), None)
    if found is None:
        return None
    pruning = Config(cast(Step, found), FILE)
    domains = pruning.raw("domains")
    try:
        return PrunedRows(
            facts.draft_vocab,
            pruning.required("rows"),
            pruning.integer("forced") or 0,
            tuple(map(_covered, domains if isinstance(domains, list) else ())),
            pruning.text("trace") or "",
        )
    except BadCheckpoint:  # an earlier record may hold anything, and a card does without
        return None


def _covered(domain: object) -> CoveredText:
    part = Config(domain if isinstance(domain, dict) else {}, FILE)
    sizes = (part.integer("tokens") or 0, part.integer("held") or 0)
    return CoveredText(part.text("name") or "", *sizes, part.number("covered") or 0.0)
