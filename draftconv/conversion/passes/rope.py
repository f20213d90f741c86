"""Writes out what a rotary embedding leaves to its reader."""

from __future__ import annotations

from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter
from draftconv.drafter.facts import Mla
from draftconv.drafter.rope import with_yarn_defaults


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """YaRN's defaults, as numbers, for a layout whose reader has none of its own."""
    if not context.writer.spelling.yarn_in_full:
        return work
    rope = with_yarn_defaults(work.facts.rope, latent=isinstance(work.facts.attention, Mla))
    return work.with_facts("the defaults that it was read with, which this reader has not", rope=rope)
