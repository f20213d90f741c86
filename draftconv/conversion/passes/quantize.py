"""Rounds the weights that a recipe quantizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from draftconv.checkpoint import Copy
from draftconv.conversion.passes.base import Context
from draftconv.conversion.quantization_plan import QuantizationPlan
from draftconv.conversion.quantized_output import declare_activations, put_computed
from draftconv.conversion.working_drafter import ChangeKind, WorkingDrafter
from draftconv.errors import Refused
from draftconv.quantization.exclusions import WEIGHT, fused_with

if TYPE_CHECKING:
    from draftconv.quantization.computations import Floats
    from draftconv.quantization.quantized_weights import QuantizedWeights


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """Quantize what was decided on.

    Raises:
        Refused: a weight was changed by an earlier pass, or the format cannot hold one of this shape.
    """
    match context.weights.making:
        case QuantizationPlan() as decided:
            return _quantize_weights(work, decided)
        case _:
            return work


def _quantize_weights(work: WorkingDrafter, decided: QuantizationPlan) -> WorkingDrafter:
    from draftconv.quantization.computations import Quantize, RestoredWeight, SharedScales

    output, rounding, calibration, stored = decided.output, decided.rounding, decided.calibration, decided.stored
    sources = {name: _float_source(work, name, stored) for name in decided.selection.quantized}
    shared_scales = SharedScales()
    for name, ref in sources.items():
        module, part = name.removesuffix(WEIGHT), output.parts[name]
        computation = Quantize(
            name,
            ref,
            part.scheme,
            part.format,
            part.style,
            tuple(sources[member] for member in fused_with(name, sources)),
            decided.deviations,
            calibration.scales.get(module),
            decided.part(name).rounds,
            rounding.block,
            rounding.device,
            calibration.smoothings.get(name),
            shared_scales,
            calibration.gptq.qvalues if calibration.gptq and name in calibration.gptq.wanted else None,
        )
        outputs, inputs = ref.shape
        tensors = part.format.parts((outputs, inputs), part.scheme, ref.dtype)
        work = put_computed(work.without(name), module, tensors, computation)
        kind: ChangeKind = "requantized" if isinstance(ref, RestoredWeight) else "replaced"
        smoothed = "; inputs smoothed by AWQ" if name in calibration.smoothings else ""
        work = work.declare(kind, name, f"{decided.why(name)}{smoothed}")
    if stored is not None:
        work = declare_activations(work, stored.activations, output)
    return replace(work, packed=output.packed())


def _float_source(work: WorkingDrafter, name: str, stored: QuantizedWeights | None) -> Floats:
    if stored is not None and name.removesuffix(WEIGHT) in stored.modules:
        from draftconv.quantization.computations import RestoredWeight

        return RestoredWeight(name, stored)
    match work.tensors[name].operation:
        case Copy(ref):
            return ref
        case _:
            raise Refused(
                f"{name} is changed before it is quantized",
                why="its values would be rounded twice without a word",
                cure="convert first, then quantize what came of it",
            )
