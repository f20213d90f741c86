"""How a drafter is read before anything acts on it: what a person says, and what only a person can say."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftconv.checkpoint import Checkpoint, show
from draftconv.drafter.describe import describe_value
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import describe_boundaries
from draftconv.drafter.targets import Target
from draftconv.errors import Undecided, UsageError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter


@dataclass(frozen=True, slots=True)
class DrafterReader:
    """Reads one drafter as a person says that it is to be read.

    Attributes:
        layout: `--from`. `aux_convention`: what its layer ids mean, `before` or `after`.
        accept_detected: go on with the detected reading where others fit as well.
        drafter: as it was typed, in a command that takes several.
    """

    layout: str | None = None
    aux_convention: str | None = None
    accept_detected: bool = False
    drafter: str | None = None

    @property
    def arguments(self) -> list[str]:
        """The same as options of a command that takes one drafter."""
        options = (("--from", self.layout), ("--aux-convention", self.aux_convention))
        return [argument for option, value in options if value for argument in (option, value)]

    def options(self, target: Target | None) -> ReadOptions:
        """The same, checked.

        Raises:
            UsageError: no such convention.
        """
        match self.aux_convention:
            case "before" | "after" | None:
                return ReadOptions(self.layout, self.aux_convention, target)
            case _:
                raise UsageError(f"--aux-convention {self.aux_convention}: unknown", cure="write before or after")

    def read(self, checkpoint: Checkpoint, target: Target | None) -> Drafter:
        """Read a drafter that is going to be acted on.

        Raises:
            Undecided: its file can be read in several ways, and nobody said which.
            BadCheckpoint, NotADrafter, UsageError: see `read_drafter`.
        """
        drafter = read_drafter(checkpoint, self.options(target))
        if not drafter.readings or self.accept_detected:
            return drafter
        detected, *others = (self._describe_option(*reading.option, reading.means) for reading in drafter.readings)
        raise Undecided(
            f"{show(checkpoint.name)} can be read in {len(drafter.readings)} ways, and a wrong one costs accept length "
            "without a message",
            why=f"as detected, {'; '.join((detected, *others))}",
            cure="add the option that fits how it was trained, or --accept-detected to go on as detected",
        )

    def _describe_option(self, option: str, value: str, means: str) -> str:
        of = f"{shlex.quote(self.drafter)}=" if self.drafter else ""
        return f"{option} {of}{value}: {means}"


def drafter_readers(
    drafters: Sequence[str | Path],
    layouts: str | Sequence[str] = (),
    aux_conventions: str | Sequence[str] = (),
    *,
    accept_detected: bool = False,
) -> list[DrafterReader]:
    """What is said of each of several drafters, in their order.

    Args:
        layouts, aux_conventions: VALUE for the first drafter, DRAFTER=VALUE for any, DRAFTER as in `drafters`.

    Raises:
        UsageError: a value for a drafter that is not there, or two for one.
    """
    by_layout, by_convention = (
        by_drafter(drafters, option, values)
        for option, values in (("--from", layouts), ("--aux-convention", aux_conventions))
    )
    return [
        DrafterReader(by_layout.get(i), by_convention.get(i), accept_detected, str(drafter))
        for i, drafter in enumerate(drafters)
    ]


def by_drafter(drafters: Sequence[str | Path], option: str, values: str | Sequence[str]) -> dict[int, str]:
    """What an option says of each of several drafters, by place: VALUE of the first, DRAFTER=VALUE of any.

    Raises:
        UsageError: a value for a drafter that is not there, or two for one.
    """
    chosen: dict[int, str] = {}
    for typed in (values,) if isinstance(values, str) else values:
        name, _, value = typed.rpartition("=")
        places = [i for i, drafter in enumerate(drafters) if not name or Path(str(drafter)) == Path(name)]
        if not places:
            raise UsageError(
                f"{option} {show(typed)} is about no drafter of this command",
                why=f"given: {', '.join(show(str(drafter)) for drafter in drafters) or 'none'}",
                cure=f"write {option} DRAFTER={show(value)}, with a drafter as it is typed",
            )
        for i in places if name else places[:1]:
            if i in chosen:
                raise UsageError(f"{option} says two things of {show(str(drafters[i]))}: {chosen[i]} and {show(value)}")
            chosen[i] = value
    return chosen


INFERRED = ("boundaries", "feedback", "norm_before_residual")
"""Facts that no tensor shows and that producers spell alike and mean otherwise."""


def reading_line(drafter: Drafter) -> str:
    """How a drafter was read, with every inference and its reason, in one line."""
    detection = drafter.detection
    inferred = (f"{fact} {_describe_fact(drafter, fact)} ({why})" for fact, why in _inferred_facts(drafter))
    layout = f"{detection.layout} ({detection.confidence}: {', '.join(detection.reasons)})"
    return f"{drafter.checkpoint.name} is read as {layout}: {'; '.join(inferred)}"


def reading_warnings(drafter: Drafter) -> tuple[str, ...]:
    """What is doubtful about how a drafter was read."""
    return tuple(f"{problem.code}: {problem.detail}" for problem in drafter.problems if problem.kind.reading)


def reading_json(drafter: Drafter) -> dict[str, object]:
    """The same for a program; `readings` are those that fit alike, the one that was acted on first."""
    detection = drafter.detection
    return {
        "name": drafter.checkpoint.name,
        "layout": detection.layout,
        "confidence": detection.confidence,
        "reasons": list(detection.reasons),
        "inferred": {
            fact: {"value": _describe_fact(drafter, fact), "reason": why} for fact, why in _inferred_facts(drafter)
        },
        "warnings": [{"code": p.code, "detail": p.detail} for p in drafter.problems if p.kind.reading],
        **readings_json(drafter),
    }


def readings_json(drafter: Drafter) -> Mapping[str, object]:
    """The readings among which the detected one was accepted."""
    return {"readings": [{"option": " ".join(reading.option), "means": reading.means} for reading in drafter.readings]}


def _inferred_facts(drafter: Drafter) -> Iterator[tuple[str, str]]:
    return ((fact, drafter.reasons[fact]) for fact in INFERRED if fact in drafter.reasons)


def _describe_fact(drafter: Drafter, fact: str) -> str:
    value = getattr(drafter.facts, fact)
    return describe_boundaries(value) if fact == "boundaries" else describe_value(value)
