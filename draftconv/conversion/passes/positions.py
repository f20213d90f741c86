"""Sets max_position_embeddings."""

from __future__ import annotations

from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """As asked, or raised to the target's."""
    have, requested, target = work.facts.max_positions, context.options.max_positions, context.target
    if requested is not None:
        return work.with_facts("--max-positions", max_positions=requested)
    if target and target.max_positions and (have is None or have < target.max_positions):
        return work.with_facts(f"raised to that of {target.name}", max_positions=target.max_positions)
    return work
