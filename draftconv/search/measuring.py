"""What combinations of choices cost on one half of a trace: replayed one after the other, and remembered.

A drafter of full size fills memory once; so the reference is loaded once, and a combination is made of it, replayed
and dropped. Every combination's counts are written down as soon as they are known, so that a search that was stopped
goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftconv.errors import Refused
from draftconv.quantization.recipes import MAIN, Recipe
from draftconv.quantization.rounding import refuse_unsimulated
from draftconv.quantization.scheme import Scheme
from draftconv.quantization.simulate import simulate, stored_dtypes
from draftconv.replay.gptq import GptqCalibration
from draftconv.replay.gptq_files import GptqFiles
from draftconv.replay.pruned import pruned_arm
from draftconv.replay.replay import Arm, replay
from draftconv.replay.static_scales import StaticScales
from draftconv.replay.tally import record
from draftconv.report.records import Record, lines, paired, read_lines
from draftconv.report.statistics import Estimate, Pair, estimate
from draftconv.search.planning import PlannedDrafter
from draftconv.traces.trace import Trace, TraceEntry

logger = logging.getLogger(__name__)

REFERENCE = "the drafter as it is"
"""The arm that everything is compared with."""


@dataclass(slots=True)
class Half:
    """One half of a trace, and what was replayed on it so far.

    Attributes:
        kept: where counts are written down, a line per request and combination.
        records: by the name of a combination.
        scales: of static activations, for all halves measured on the one that is searched; and the tokens of pruned
            heads.
    """

    trace: Trace
    entries: Sequence[TraceEntry]
    reference: Arm
    depth: int
    kept: Path
    records: dict[str, tuple[Record, ...]]
    scales: StaticScales

    @classmethod
    def of(
        cls,
        trace: Trace,
        entries: Sequence[TraceEntry],
        reference: Arm,
        depth: int,
        kept: Path,
        scales: StaticScales,
    ) -> Half:
        """A half of which earlier runs may have replayed something."""
        records: dict[str, dict[str, Record]] = {}
        if kept.is_file():
            whole = kept.read_bytes()
            for line in read_lines(whole[: whole.rfind(b"\n") + 1]):  # a line that was cut off counts for nothing
                records.setdefault(line.arm, {})[line.id] = line
        complete = {name: tuple(found.values()) for name, found in records.items() if len(found) == len(entries)}
        return cls(trace, entries, replace(reference, name=REFERENCE), depth, kept, complete, scales)

    def pairs(self, planned: PlannedDrafter) -> tuple[Pair, ...]:
        """Every request with the counts of the drafter as it is, and of this combination.

        Raises:
            UsageError, BadCheckpoint: as `replay` and `simulate`.
        """
        self._measure(REFERENCE, lambda: self.reference)
        if not planned.changed:
            self.records[planned.name] = tuple(replace(line, arm=planned.name) for line in self.records[REFERENCE])
        self._measure(planned.name, lambda: self._arm(planned))
        return paired((*self.records[REFERENCE], *self.records[planned.name]), REFERENCE, planned.name)

    def differing(self, planned: PlannedDrafter, arm: Arm) -> int:
        """In how many requests another arm has other counts than were measured of this combination."""
        measured = {line.id: line.counts for line in self.records[planned.name]}
        return sum(line.counts != measured[line.id] for line in self._replayed(arm))

    def estimate(self, planned: PlannedDrafter) -> Estimate:
        """Both accept lengths and their ratio on this half."""
        return estimate(pair for pair in self.pairs(planned) if pair.counted)

    def _measure(self, name: str, arm: Callable[[], Arm]) -> None:
        if name in self.records:
            return
        self.records[name] = tuple(self._replayed(replace(arm(), name=name)))
        with self.kept.open("a", encoding="ascii") as file:
            file.writelines(f"{line}\n" for line in lines(self.records[name]))

    def _replayed(self, arm: Arm) -> Iterator[Record]:
        requests = (self.trace.read(entry, arm.boundaries) for entry in self.entries)
        replayed = replay([arm], requests, arm.boundaries, depth=self.depth)
        return (record(arm.name, request, found) for request, (found,) in replayed)

    def calibrate(self, planned: PlannedDrafter) -> GptqCalibration | None:
        """Round what GPTQ rounds of it, or find it rounded; None where GPTQ rounds nothing.

        Weights of one scheme are rounded once for all combinations: what they become does not depend on the others.

        Raises:
            Refused, BadCheckpoint: as `GptqCalibration.run`.
        """
        gptq = planned.decided.calibration.gptq if planned.decided else None
        if gptq is not None and not gptq.records:
            files = self._gptq_files({name: repr(scheme) for name, scheme in sorted(gptq.schemes.items())})
            if not gptq.sequential:
                parts = {self._gptq_files(repr(scheme)): part for scheme, part in gptq.by_scheme.items()}
                for kept, part in parts.items():
                    part.run(kept)
                files = replace(files, besides=tuple(kept.directory for kept in parts))
            gptq.run(files)
        return gptq

    def _gptq_files(self, of: object) -> GptqFiles:
        directory = self.kept.parent / f"gptq-{hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]}"
        directory.mkdir(exist_ok=True)
        return GptqFiles(directory)

    def _arm(self, planned: PlannedDrafter) -> Arm:
        arm, scales = self.reference, self.scales
        if planned.rows is not None:
            arm = pruned_arm(arm, scales.tokens[planned.rows])
        if planned.recipe is None:
            return arm
        gptq, stored = self.calibrate(planned), stored_dtypes(planned.conversion.drafter)
        qvalues = gptq.qvalues if gptq else None
        recipe = executed(planned)
        static = scales.of(recipe, planned.rows)
        return replace(arm, model=simulate(arm.model, recipe, stored=stored, qvalues=qvalues, scales=static))


def executed(planned: PlannedDrafter) -> Recipe:
    """The recipe as the engine multiplies it: without the activations that its kernels leave in 16 bits."""
    recipe, decided = planned.recipe, planned.decided
    if recipe is None or decided is None:
        raise ValueError(f"{planned.name} quantizes nothing")
    deployment = decided.deployment

    def multiplied(role: str, scheme: Scheme) -> Scheme:
        return replace(scheme, inputs=deployment.of(role).multiplied)

    roles = {role: multiplied(role, scheme) for role, scheme in recipe.roles.items()}
    return replace(recipe, scheme=multiplied(MAIN, recipe.scheme), roles=roles)


def unsimulated(planned: PlannedDrafter) -> str:
    """Why no replay computes what the engine multiplies; empty where one does."""
    if planned.recipe is None:
        return ""
    recipe = executed(planned)
    try:
        for inputs in (scheme.inputs for scheme in (recipe.scheme, *recipe.roles.values())):
            if inputs is not None:
                refuse_unsimulated(inputs)
    except Refused as refusal:
        return f"{refusal.what}: {refusal.why}"
    return ""


def multiplied(planned: PlannedDrafter) -> frozenset[str]:
    """The weights whose inputs the engine rounds."""
    decided = planned.decided
    if decided is None:
        return frozenset()
    return frozenset(
        name for name, role in decided.selection.roles.items() if decided.deployment.of(role).multiplied is not None
    )
