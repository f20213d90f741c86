"""The arms of a run: the reference, the reference again (A/A), the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftconv.checkpoint import ByteCounter, open_checkpoint
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.live.options import LiveOptions, Progress, in_full
from draftconv.options import several
from draftconv.report.arms import ArmNames, about_arm, bytes_of, comparison_kind, gate
from draftconv.report.model import ArmInfo
from draftconv.report.verdict import Gate


@dataclass(frozen=True, slots=True)
class LiveArm:
    """One arm of the run.

    Attributes:
        number: its directory in the run; 0 is the reference, 1 the reference again.
        source: what the engine is given as its drafter. `reader`: how it is to be read.
        url: of its running server, and the option it came from.
    """

    number: int
    about: ArmInfo
    source: str
    reader: DrafterReader
    gate: Gate | None = None
    url: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return self.about.name


def arms_of(
    reference: str | Path,
    candidates: Sequence[str | Path],
    goal: Target,
    options: LiveOptions,
    progress: Progress | None,
) -> list[LiveArm]:
    """The reference, the reference again, the candidates."""
    specs = (reference, *candidates)
    readers = options.readers(specs)
    opened = (open_checkpoint(spec, download=True) for spec in specs)
    drafters = [reader.read(checkpoint, goal) for reader, checkpoint in zip(readers, opened, strict=True)]
    total = sum(map(bytes_of, drafters))
    tally = ByteCounter(None if progress is None else lambda done: progress("reading", done, total))
    names = ArmNames()
    urls = _urls(options, len(candidates))

    def arm(
        number: int, drafter: Drafter, source: str | Path, reader: DrafterReader, url: tuple[str, str] | None
    ) -> LiveArm:
        about = about_arm(names.new(drafter.checkpoint.name), drafter, tally)
        kind = comparison_kind(drafters[0], drafter)
        margin = options.margins.get(kind) if options.margin is None else options.margin
        arm_gate = gate(kind, margin, "live") if number else None
        return LiveArm(number, about, in_full(str(source)), reader, arm_gate, url)

    first = arm(0, drafters[0], reference, readers[0], urls[0])
    again = replace(first, number=1, about=replace(first.about, name=names.new(f"{first.name} again")))
    rest = zip(drafters[1:], candidates, readers[1:], urls[1:], strict=True)
    return [first, again, *(arm(number, *row) for number, row in enumerate(rest, 2))]


def _urls(options: LiveOptions, candidates: int) -> list[tuple[str, str] | None]:
    if options.url_ref is not None:
        return [(options.url_ref, "--url-ref"), *((url, "--url-cand") for url in several(options.url_cand))]
    return [(options.url, "--url") if options.url else None] * (1 + candidates)
