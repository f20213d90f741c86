"""Brings quantized weights into another format: the same integers and scales."""

from __future__ import annotations

from dataclasses import replace

from draftconv.conversion.passes.base import Context
from draftconv.conversion.quantized_output import (
    OutputPart,
    QuantizedOutput,
    declare_activations,
    put_computed,
    spelled,
)
from draftconv.conversion.repack_plan import RepackPlan
from draftconv.conversion.working_drafter import WorkingDrafter
from draftconv.drafter.tensors import expected
from draftconv.quantization.exclusions import WEIGHT


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """Repack what was decided on. Scales are read, to know that they fit; codes are not.

    Raises:
        Refused: the format cannot hold them.
        BadCheckpoint: the tensors of a weight do not fit each other.
    """
    match context.weights.making:
        case RepackPlan() as decided:
            kept = [name for name in expected(work.facts) if name.endswith(WEIGHT) and name not in decided.quantized]
            ignore, listed = spelled(
                decided.format.id, work.facts, kept, decided.quantized, decided.specs, context.target
            )
            part = OutputPart(decided.format, decided.style, decided.scheme, listed)
            return _repack_weights(work, decided, QuantizedOutput(dict.fromkeys(decided.quantized, part), ignore))
        case _:
            return work


def _repack_weights(work: WorkingDrafter, decided: RepackPlan, output: QuantizedOutput) -> WorkingDrafter:
    from draftconv.quantization.computations import Repack
    from draftconv.quantization.regroup import rounding

    stored, fmt, style, scheme = decided.stored, decided.format, decided.style, decided.scheme
    for module, parts in stored.modules.items():
        group, weight_only = scheme.weights.group, scheme.inputs is None
        narrow = decided.scales != "as stored"
        computation = Repack(module, parts, stored, fmt, style, group, narrow, weight_only)
        weight = computation.outline()
        foretold = fmt.parts(stored.shapes[module], scheme, weight.dtype)
        work = put_computed(work, module, foretold, computation)
        why = f"the same integers and scales as {fmt.title}"
        if decided.scales == "narrowed":
            why += f", scales stored as {weight.dtype}, which holds every one of them: values unchanged"
        if decided.scales == "rounded":
            why += f", scales rounded to {weight.dtype}: values change by up to {rounding(weight.dtype):.2%}"
        work = work.declare("replaced", f"{module}{WEIGHT}", why)
    work = declare_activations(work, stored.activations, output, f": {fmt.title} cannot declare them")
    return replace(work, packed=output.packed())
