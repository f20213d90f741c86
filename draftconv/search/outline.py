"""What a search would do, and how long it would take here: `slim --dry-run`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from draftconv.checkpoint.text import size
from draftconv.display import Block, Column, Displayed, table
from draftconv.replay.replay import Arm, replay
from draftconv.report.verdict import percent
from draftconv.search.planning import LeftOutChoice, PlannedDrafter
from draftconv.traces.trace import Trace, TraceEntry

PROBED = 4
"""Requests that are replayed to learn how fast this machine is."""


@dataclass(frozen=True, slots=True, repr=False)
class Outline(Displayed):
    """A search that is planned.

    Attributes:
        alone: what is measured on its own first. `left_out`: what is not tried, and why.
        replays: most replays of one half that it takes. `seconds`: for all of them and GPTQ, by this machine's rate.
        searched, unseen: prompts of the two halves.
        certifiable: the smallest loss that so many unseen prompts can certify. `max_loss`: what may be lost.
    """

    engine: str
    depth: int
    alone: tuple[PlannedDrafter, ...]
    left_out: tuple[LeftOutChoice, ...]
    replays: int
    seconds: float
    searched: int
    unseen: int
    certifiable: float
    max_loss: float

    def brief(self) -> Iterator[str]:
        """Whom it is for, and how long it takes."""
        yield f"a search for {self.engine}"
        yield self._time()

    def blocks(self) -> Iterator[Block]:
        """How long it takes, then every choice with its size, then what is left out."""
        yield (
            f"Nothing was measured or written: a search on {self.searched} prompts, certified on {self.unseen} others, "
            f"takes at most {self.replays} replays of one half, with GPTQ {self._time()} by the rate of this machine."
        )
        yield foretold(self.unseen, self.certifiable, self.max_loss)
        yield table(
            "Measured on its own first",
            "",
            ("choice", Column("bytes per draft step", figures=True), Column("file", figures=True)),
            (
                (planned.name, size(round(planned.reads.per_step(self.depth))), size(planned.file_bytes))
                for planned in self.alone
            ),
        )
        if self.left_out:
            rows = ((choice.name, choice.why) for choice in self.left_out)
            yield table("What is left out", "", ("choice", "why"), rows)

    def document(self) -> dict[str, object]:
        """The same for a program."""
        return {
            "engine": self.engine,
            "prompts": {"searched": self.searched, "unseen": self.unseen},
            "certifiable_loss": self.certifiable,
            "replays": self.replays,
            "seconds": round(self.seconds, 1),
            "choices": [
                {
                    "name": planned.name,
                    "bytes_per_step": planned.reads.per_step(self.depth),
                    "file_bytes": planned.file_bytes,
                }
                for planned in self.alone
            ],
            "left_out": [{"choice": choice.name, "why": choice.why} for choice in self.left_out],
        }

    def _time(self) -> str:
        minutes = self.seconds / 60
        return f"about {minutes:.0f} minutes" if minutes >= 2 else f"about {max(1.0, self.seconds):.0f} seconds"


def foretold(unseen: int, certifiable: float, max_loss: float) -> str:
    """What so many prompts can certify, and whether that is enough."""
    says = (
        f"{unseen} unseen prompts certify losses from about {100 * certifiable:.1f} % on, by how drafters varied on "
        "the trained fixtures"
    )
    if certifiable <= max_loss:
        return f"{says}."
    return (
        f"{says}: with {percent(max_loss)} allowed likely nothing is certified. Give a trace of more prompts, or of "
        "longer texts."
    )


def seconds_per_token(arm: Arm, trace: Trace, entries: tuple[TraceEntry, ...], depth: int) -> float:
    """How long one drafter takes for a token of text here, from a few requests."""
    probed = entries[:PROBED]
    began = time.perf_counter()
    for _ in replay([arm], (trace.read(entry, arm.boundaries) for entry in probed), arm.boundaries, depth=depth):
        pass
    return (time.perf_counter() - began) / sum(map(tokens, probed))


def gptq_seconds(alone: Iterable[PlannedDrafter]) -> float:
    """How long GPTQ takes here for every choice, each once: combinations take what it rounded for them."""
    calibrations = (planned.decided.calibration.gptq for planned in alone if planned.decided and planned.rows is None)
    return sum(gptq.estimate().seconds for gptq in calibrations if gptq is not None)


def tokens(entry: TraceEntry) -> int:
    """Of a request, prompt and text."""
    return entry.prompt + entry.counted
