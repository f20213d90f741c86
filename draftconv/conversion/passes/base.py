"""What a pass is, and what every pass is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftconv.conversion.options import ConvertOptions
from draftconv.conversion.provenance import Lineage
from draftconv.conversion.pruning.tokens import KeptTokens
from draftconv.conversion.weight_plan import WeightPlan
from draftconv.conversion.working_drafter import WorkingDrafter
from draftconv.drafter.checks import Findings
from draftconv.drafter.targets import Target
from draftconv.layouts.base import Writer


@dataclass(frozen=True, slots=True)
class Context:
    """What every pass is told; none is told anything else.

    Attributes:
        writer: of the layout that is written. `findings`: problems of the source.
        weights: what becomes of quantized weights.
        returning: the way from the newest source that was in this layout, for a drafter that returns to it.
        pruning: the tokens that the head keeps; None keeps all.
    """

    target: Target | None
    writer: Writer
    options: ConvertOptions
    findings: Findings
    weights: WeightPlan
    returning: Lineage | None
    pruning: KeptTokens | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """One step from drafter to drafter; a work that it has nothing to do with it returns as it is."""

    name: str
    run: Callable[[WorkingDrafter, Context], WorkingDrafter]
