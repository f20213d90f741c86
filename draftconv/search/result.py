"""What a search found: the drafters on its path, what they cost and bring, and the one that is certified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftconv.checkpoint.text import size
from draftconv.display import Block, Column, Displayed, Table, named, table
from draftconv.report.acceptance.speed import SpeedAtDepth
from draftconv.report.certification import Certificate
from draftconv.report.verdict import EXIT_CODES, percent
from draftconv.search.again import Again
from draftconv.search.planning import LeftOutChoice
from draftconv.search.searching import Candidate
from draftconv.search.speed import SpeedModel

REPLAYED = "Accept lengths are replayed, as the engine's source says that it multiplies: not run on hardware."


@dataclass(frozen=True, slots=True, repr=False)
class SlimResult(Displayed):
    """What a search found.

    Attributes:
        drafter: its name. `engine`: whom it is for. `depth`: K.
        max_loss: share of accept length that may be lost. `alpha`: how often a certificate may be wrong.
        searched, unseen: prompts of the two halves.
        path: combinations from the drafter as it is to the smallest, with what the unseen half says of those that it
            judged.
        chosen: what was certified and written; None where nothing was.
        smallest_loss: that so many unseen prompts can certify, as the first half lets expect.
        left_out: what was not tried, and why.
        notes: what is to be known of the trace, and of heads of fewer rows.
        again: the commands that make the bytes of what was written again.
        speed: what each would bring in tokens per second; None where nobody tells how long steps take.
        command: what was typed.
    """

    drafter: str
    engine: str
    depth: int
    max_loss: float
    alpha: float
    searched: int
    unseen: int
    path: tuple[Candidate, ...]
    chosen: Candidate | None
    smallest_loss: float
    left_out: tuple[LeftOutChoice, ...]
    notes: tuple[str, ...] = ()
    again: Again | None = None
    speed: SpeedModel | None = None
    command: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether a drafter was certified and written."""
        return self.chosen is not None

    @property
    def exit_code(self) -> int:
        """0 where a drafter was certified; 3, as for too little data, where none was."""
        return EXIT_CODES["pass" if self.passed else "inconclusive"]

    def bytes_read(self, candidate: Candidate) -> float:
        """Bytes of weights that a draft step of a candidate reads, the mean of a round."""
        return candidate.planned.reads.per_step(self.depth)

    def speeds(self, candidate: Candidate) -> tuple[SpeedAtDepth, ...]:
        """What a candidate would bring in tokens per second, under every load that is known of."""
        return () if self.speed is None else self.speed.of(candidate.planned.reads, candidate.searched.candidate)

    @property
    def whole_bytes(self) -> float:
        """Bytes that a draft step of the drafter as it is reads."""
        return self.bytes_read(self.path[0])

    def brief(self) -> Iterator[str]:
        """What became of it."""
        yield f"{named(self.drafter)} for {self.engine}"
        yield "certified" if self.passed else f"nothing certified at a loss below {percent(self.max_loss)}"
        if self.chosen is not None:
            yield f"{100 * self.bytes_read(self.chosen) / self.whole_bytes:.0f} % of the bytes per draft step"

    def blocks(self) -> Iterator[Block]:
        """The outcome, then every combination on the path."""
        yield self._outcome()
        yield from (f"Warning: {note}" for note in self.notes)
        yield self._path()
        yield REPLAYED
        if self.speed is not None:
            yield self.speed.sentence()

    def details(self) -> Iterator[Block]:
        """What the engine does not run, and why."""
        if self.left_out:
            rows = [(choice.name, choice.why) for choice in self.left_out]
            yield table("What was left out", "", ("choice", "why"), rows)

    def save(self, out: str | Path, *, overwrite: bool = False) -> None:
        """Write slim.json, slim.md, pareto.svg and, of a certified drafter, recipe.yaml into a directory.

        Raises:
            UsageError, WriteError: the directory is occupied or cannot be written.
        """
        from draftconv.search.report import write_slim

        write_slim(self, Path(out), overwrite=overwrite)

    def _outcome(self) -> str:
        asked = f"a loss below {percent(self.max_loss)}, wrong in at most {percent(self.alpha)} of searches"
        if self.chosen is None:
            return (
                f"No drafter is certified at {asked}: {self.unseen} unseen prompts certify losses from "
                f"{100 * self.smallest_loss:.1f} % on. Give a trace of more prompts, or allow a larger loss."
            )
        share = 100 * self.bytes_read(self.chosen) / self.whole_bytes
        return (
            f"Certified at {asked}: {self.chosen.planned.name}. A draft step reads {share:.0f} % of the bytes "
            f"({size(round(self.bytes_read(self.chosen)))} for {size(round(self.whole_bytes))})."
        )

    def _path(self) -> Table:
        columns: Sequence[str | Column] = (
            "combination",
            Column("bytes per draft step", figures=True),
            Column("file", figures=True),
            Column("accept length", figures=True),
            Column("ratio", figures=True),
            *(Column(title, figures=True) for title in self._loads()),
            "unseen half",
        )
        return table(
            "From the drafter as it is to the smallest",
            f"Measured on {self.searched} prompts, ratios with 95 % intervals; the last column is of {self.unseen} "
            "others, which the search never saw.",
            columns,
            (
                (
                    tuple(candidate.planned.name.split("; ")),
                    f"{size(round(self.bytes_read(candidate)))}, "
                    f"{100 * self.bytes_read(candidate) / self.whole_bytes:.0f} %",
                    size(candidate.planned.file_bytes),
                    f"{candidate.searched.candidate.value:.3f}",
                    (
                        f"{candidate.searched.ratio:.4f}",
                        f"{candidate.searched.interval.low:.4f} to {candidate.searched.interval.high:.4f}",
                    ),
                    *map(_gain, self.speeds(candidate)),
                    _said(candidate.certificate),
                )
                for candidate in self.path
            ),
        )

    def _loads(self) -> list[str]:
        known = () if self.speed is None else self.speed.known
        return [f"speed-up, {cost.concurrency} at a time" for cost in known]


def _gain(speed: SpeedAtDepth) -> tuple[str, str]:
    low, high = speed.gain.interval.low, speed.gain.interval.high
    return f"{speed.gain.value:.2f} x", f"{low:.2f} to {high:.2f}"


def _said(certificate: Certificate | None) -> str:
    if certificate is None:
        return ""
    outcome = "certified" if certificate.passed else "not certified"
    return f"{outcome}: {certificate.ratio:.4f}, above {certificate.low:.4f}"
