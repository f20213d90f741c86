"""What a recipe would make of one drafter for one engine: whether it runs there, how large it is, how much is read.

Nothing is read of the weights, so that everything can be asked about before anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from draftconv.conversion.options import QuantizeOptions
from draftconv.conversion.plan import Conversion, plan_drafter
from draftconv.conversion.quantization_plan import QuantizationPlan, QuantizationRequest, plan_quantization
from draftconv.conversion.request import ConversionRequest
from draftconv.drafter.checks import Findings
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.step_bytes import StepBytes, planned_step_bytes
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import HEAD
from draftconv.engines import ENGINES, EngineSpec
from draftconv.errors import DraftconvError, Refused, UsageError
from draftconv.quantization.recipes import Recipe
from draftconv.replay.target_tables import from_target


@dataclass(frozen=True, slots=True)
class PlannedDrafter:
    """What an engine runs of a recipe.

    Attributes:
        recipe: None where nothing is quantized. `rows`: that its head keeps; None where nothing is pruned.
        reads: bytes of weights that a draft step reads. `file_bytes`: of all tensors.
    """

    name: str
    recipe: Recipe | None
    decided: QuantizationPlan | None
    conversion: Conversion
    reads: StepBytes
    rows: int | None = None

    @property
    def changed(self) -> bool:
        """Whether it is another drafter than the search started from."""
        return self.recipe is not None or self.rows is not None

    @property
    def file_bytes(self) -> int:
        return self.conversion.plan.total_bytes


@dataclass(frozen=True, slots=True)
class LeftOutChoice:
    """What the engine does not run, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Planner:
    """One drafter for one engine.

    Attributes:
        semantics: whose rule decides between the drafter's tables and the target's.
        calibrated: without, nothing is measured on a trace: sizes are known, and nothing can be written.
        rows: that the head of this drafter was pruned to; None where it was not.
    """

    drafter: Drafter
    findings: Findings
    target: Target | None
    spec: EngineSpec
    options: QuantizeOptions
    semantics: str
    calibrated: bool = True
    rows: int | None = None
    _plans: dict[str, PlannedDrafter | LeftOutChoice] = field(default_factory=dict)

    def plan(self, name: str, recipe: Recipe | None) -> PlannedDrafter | LeftOutChoice:
        """What becomes of a recipe; of the drafter as it is for None. Asked for once more it is the same object.

        Raises:
            Refused: the engine does not run the drafter even as it is.
        """
        if name not in self._plans:
            self._plans[name] = self._plan(name, recipe)
        return self._plans[name]

    def _plan(self, name: str, recipe: Recipe | None) -> PlannedDrafter | LeftOutChoice:
        try:
            decided = None if recipe is None else self._decide(recipe)
            request = self._plain() if decided is None else decided.request
            conversion = plan_drafter(self.drafter, self.findings, self.target, request)
        except (Refused, UsageError) as refusal:
            if recipe is None and self.rows is None:
                raise  # the engine does not run the drafter at all
            return LeftOutChoice(name, reason(refusal))
        sizes = {name: tensor.nbytes for name, tensor in conversion.work.tensors.items()}
        lent_head = HEAD in from_target(self.drafter.facts, self.semantics)
        reads = planned_step_bytes(sizes, self.drafter.facts, lent_head=lent_head)
        return PlannedDrafter(name, recipe, decided, conversion, reads, self.rows)

    def _decide(self, recipe: Recipe) -> QuantizationPlan:
        request = QuantizationRequest(self.options, recipe, (self.spec,))
        # Static scales take a pass over the trace, and none is needed to know sizes: `certified` measures them.
        calibrated = self.calibrated and not recipe.has_static_inputs
        decided = plan_quantization(self.drafter, self.target, request, calibrated=calibrated)
        gptq = decided.calibration.gptq
        if gptq is None or gptq.sequential:
            return decided
        # What it rounds does not depend on the other weights: told so, combinations share one calibration.
        alone = gptq.narrowed()
        return replace(decided, calibration=replace(decided.calibration, gptq=alone))

    def certified(self, planned: PlannedDrafter, certificate: Mapping[str, object]) -> PlannedDrafter:
        """The same as it is written: its static scales are measured, and its record tells what was certified.

        Raises:
            Refused, UsageError, BadCheckpoint: as `plan_quantization`.
        """
        decided = planned.decided
        if planned.recipe is not None and planned.recipe.has_static_inputs:
            request = QuantizationRequest(self.options, planned.recipe, (self.spec,))
            decided = plan_quantization(self.drafter, self.target, request)
        asked = self._plain() if decided is None else decided.request
        told = replace(asked, certificate=certificate)
        conversion = plan_drafter(self.drafter, self.findings, self.target, told)
        return replace(planned, decided=decided, conversion=conversion)

    def _plain(self) -> ConversionRequest:
        return ConversionRequest(replace(self.options.convert, to=ENGINES[self.spec.name].layout), (self.spec,))


Planners = Mapping[int | None, Planner]
"""Rows of the head → a drafter with so many; None is the drafter as it is."""


def reason(refusal: DraftconvError) -> str:
    """Why something is left out. A trace that is too short for GPTQ says so in what it refuses, engines in why."""
    return refusal.why if isinstance(refusal, Refused) and refusal.why else refusal.what
