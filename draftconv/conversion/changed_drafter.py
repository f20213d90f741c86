"""A drafter after the passes, and as a layout spells it: what is written, and what `verify` makes again."""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.conversion.passes import run_passes
from draftconv.conversion.passes.base import Context
from draftconv.conversion.planned_output import PlannedConfig, named_quantization, spell_config
from draftconv.conversion.provenance import Lineage, Provenance
from draftconv.conversion.request import ConversionRequest
from draftconv.conversion.weight_plan import WeightPlan, plan_weights
from draftconv.conversion.working_drafter import WorkingDrafter, start
from draftconv.drafter.checks import Findings
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.errors import UsageError
from draftconv.layouts import layouts, writable
from draftconv.layouts.base import Layout, Writer
from draftconv.layouts.tensor_names import spell


@dataclass(frozen=True, slots=True)
class ChangedDrafter:
    """A drafter after every pass, not yet spelled.

    Attributes:
        weights: what became of quantized weights.
        returning: the way from the newest source that was in this layout, for a drafter that returns to it.
        verifier: what a config that names the target is to call it.
    """

    work: WorkingDrafter
    weights: WeightPlan
    layout: Layout
    writer: Writer
    returning: Lineage | None
    verifier: str | None = None


def change_drafter(
    drafter: Drafter,
    findings: Findings,
    target: Target | None,
    request: ConversionRequest,
    out_layout: Layout,
    provenance: Provenance | None,
) -> ChangedDrafter:
    """Make every change that a request asks for.

    Args:
        provenance: of the drafter.

    Raises:
        Refused, UsageError, BadCheckpoint: see `plan_weights` and the passes.
    """
    writer, verifier = writer_of(out_layout, str(request.options.to)), request.options.verifier
    if verifier is not None and not writer.names_verifier:
        raise UsageError(
            f"--verifier {verifier}: {out_layout.title} names no target in its config",
            cure="leave it out, or convert --to speculators",
        )
    weights = plan_weights(drafter, out_layout, request)
    twins = (name for name, candidate in layouts().items() if candidate.twin == out_layout.id)
    returning = provenance.since_layout(out_layout.id, *twins) if provenance else None
    context = Context(target, writer, request.options, findings, weights, returning, request.pruning)
    work = run_passes(start(drafter), context)
    return ChangedDrafter(work, weights, out_layout, writer, returning, verifier)


def spell_drafter(
    changed: ChangedDrafter, target: Target | None
) -> tuple[WorkingDrafter, dict[str, str], PlannedConfig]:
    """The work with the name of its quantization, the file's name of every tensor, and config.json.

    Raises:
        Refused: the layout's spelling would lose a fact.
    """
    work, writer = changed.work, changed.writer
    names = {name: spell(name, writer.spelling, work.facts.layers) for name in work.tensors}
    spelled = spell_config(work, changed.layout, writer, target, names, changed.returning, changed.verifier)
    if work.packed is not None:
        work = named_quantization(work, spelled, names, target)
    return work, names, spelled


def writer_of(out_layout: Layout, name: str) -> Writer:
    """What writes a layout.

    Raises:
        UsageError: it can be read only.
    """
    if out_layout.writer is None:
        raise UsageError(
            f"{name} can be read, not written", why=f"layouts that can be written: {', '.join(writable())}"
        )
    return out_layout.writer
