"""Refuses what the layout cannot express."""

from __future__ import annotations

from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter
from draftconv.errors import Refused
from draftconv.layouts.alternatives import elsewhere


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """The work as it is.

    Raises:
        Refused: the layout or its engines cannot express this drafter.
    """
    for limit in context.writer.refuses:
        if limit.holds(work.facts):
            raise Refused(
                limit.what, why=limit.why, cure=limit.cure or elsewhere(context.writer, work.facts, context.target)
            )
    return work
