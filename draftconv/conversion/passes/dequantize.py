"""Takes quantized weights of the source apart: floats in place of some, room for those that are written anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftconv.checkpoint import Computed, PlannedTensor
from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter
from draftconv.quantization.exclusions import WEIGHT

if TYPE_CHECKING:
    from draftconv.quantization.quantized_weights import QuantizedWeights


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """Floats in place of quantized weights: exactly what they stand for, rounded once."""
    weights = context.weights
    if weights.floats is not None:
        work = _restore_floats(_remove_parts(work, weights.floats), weights.floats, weights.dtype)
    if weights.anew is not None:
        work = _remove_parts(work, weights.anew)
    if weights.floats is None or weights.making is not None:
        return work
    return work.with_facts("its weights were dequantized", quantization=None)


def _remove_parts(work: WorkingDrafter, stored: QuantizedWeights) -> WorkingDrafter:
    """Without these weights; every part of one is declared as taken apart."""
    for module, parts in stored.modules.items():
        work = work.without(*(f"{module}.{suffix}" for suffix in parts))
        title = stored.matches[module].format.title
        for ref in parts.values():
            work = work.declare("dropped", ref.name, f"a part of {module}{WEIGHT} as {title} stores it")
    return work


def _restore_floats(work: WorkingDrafter, stored: QuantizedWeights, dtype: str | None) -> WorkingDrafter:
    """With these weights as floats.

    Args:
        dtype: to round to; None is that of the drafter's other weights.
    """
    from draftconv.quantization.computations import Dequantize

    for module, parts in stored.modules.items():
        computation = Dequantize(f"{module}{WEIGHT}", parts, stored, dtype or stored.dtype)
        planned = PlannedTensor(
            f"{module}{WEIGHT}", computation.dtype, stored.shapes[module], Computed(computation, "weight")
        )
        title = stored.matches[module].format.title
        work = work.put(planned).declare("replaced", f"{module}{WEIGHT}", f"dequantized from {title}")
    return work
