"""From drafter to drafter: every pass, in the one order in which they are made.

A pass is a module with `run`, told its `Context` and nothing else. It declares what it changed, reads no weights,
and refuses what it cannot do; one that has nothing to do returns the work as it is.
"""

from __future__ import annotations

import logging

from draftconv.conversion.passes import (
    biases,
    dequantize,
    dtype,
    embedding,
    limits,
    positions,
    prune,
    quantize,
    repack,
    repair,
    rope,
    vocabulary,
)
from draftconv.conversion.passes.base import Context, Pass
from draftconv.conversion.working_drafter import WorkingDrafter

logger = logging.getLogger(__name__)

PASSES = (
    Pass("dequantize", dequantize.run),  # first, so that every other pass sees floats
    Pass("repair", repair.run),
    Pass("prune", prune.run),  # after repairs of the head and its map, before what layouts ask of both
    Pass("rope", rope.run),
    Pass("limits", limits.run),  # after repairs and defaults, which may mend what a layout cannot express
    Pass("embedding", embedding.run),
    Pass("vocabulary", vocabulary.run),
    Pass("biases", biases.run),
    Pass("dtype", dtype.run),
    Pass("positions", positions.run),
    Pass("repack", repack.run),  # last: parts of quantized weights can be neither cast nor permuted
    Pass("quantize", quantize.run),
)


def run_passes(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """The work after every pass.

    Raises:
        Refused, UsageError, BadCheckpoint: see the passes.
    """
    for step in PASSES:
        before = len(work.changes)
        work = step.run(work, context)
        logger.info("pass %s: %d changes", step.name, len(work.changes) - before)
    return work
