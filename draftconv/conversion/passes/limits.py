"""Refuses what the layout cannot express."""

from __future__ import annotations

from draftconv.conversion.passes.base import Context
from draftconv.conversion.work import Work
from draftconv.errors import Refused
from draftconv.layouts.elsewhere import elsewhere


def run(work: Work, context: Context) -> Work:
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
