"""What becomes of quantized weights: those of the source, and those that a recipe makes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from draftconv.conversion.options import ConvertOptions
from draftconv.conversion.quantization_plan import QuantizationPlan
from draftconv.conversion.repack_plan import (
    RepackPlan,
    apart,
    joined_faults,
    plan_repack,
    same_integers_for,
)
from draftconv.conversion.request import ConversionRequest
from draftconv.drafter.drafter import Drafter
from draftconv.engines import ENGINES
from draftconv.errors import DraftconvError, Refused, UsageError
from draftconv.layouts.base import Layout
from draftconv.options import several
from draftconv.quantization.exclusions import WEIGHT

if TYPE_CHECKING:
    from draftconv.quantization.quantized_weights import QuantizedWeights


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """What is decided of quantized weights.

    Attributes:
        stored: all those of the source; None where it has none.
        floats: those of them that become floats, of `dtype`; None is that of the drafter's other weights.
        kept: those of them that stay as they are stored.
        anew: those of them whose parts are taken away, because they are repacked or quantized again.
        making: how quantized weights are made; None when the output has none.
        joined: problems of the values beside joined weights that the output will have.
    """

    stored: QuantizedWeights | None = None
    floats: QuantizedWeights | None = None
    dtype: str | None = None
    kept: QuantizedWeights | None = None
    anew: QuantizedWeights | None = None
    making: RepackPlan | QuantizationPlan | None = None
    joined: frozenset[str] = frozenset()


def plan_weights(drafter: Drafter, layout: Layout, request: ConversionRequest) -> WeightPlan:
    """Decide what becomes of quantized weights, before anything is changed.

    Raises:
        Refused: they are there and nobody said what to do with them, no format is known or the one asked for
            cannot hold them.
        UsageError: an option is about quantized weights and there are none, two contradict each other,
            or no such format or weight.
    """
    options, quantizing = request.options, request.quantizing
    if quantizing is not None and (stored := quantizing.stored) is not None:
        floats, anew = _split(stored, quantizing.selection.quantized)
        return WeightPlan(stored, floats, anew=anew, making=quantizing)
    if request.pruning is not None and drafter.facts.quantization is not None:
        from draftconv.quantization.weight_detection import find_quantized

        stored = find_quantized(drafter, options.from_format)
        return WeightPlan(stored, kept=stored, joined=joined_faults(drafter, stored))
    stored = _stored_weights(drafter, layout, options)
    if stored is None:
        return WeightPlan(making=quantizing)
    if options.dequantize:
        return WeightPlan(stored, stored, options.float_dtype)
    floats, packed = apart(stored, several(options.unpack))
    return WeightPlan(
        stored,
        floats,
        dtype=options.float_dtype,
        anew=packed,
        joined=joined_faults(drafter, packed),
        making=plan_repack(packed, layout, options, request.engines),
    )


def _split(stored: QuantizedWeights, again: Collection[str]) -> tuple[QuantizedWeights, QuantizedWeights]:
    """The weights that are not quantized again, and those that are."""
    anew = {module: parts for module, parts in stored.modules.items() if f"{module}{WEIGHT}" in again}
    rest = {module: parts for module, parts in stored.modules.items() if module not in anew}
    return replace(stored, modules=rest), replace(stored, modules=anew)


def _stored_weights(drafter: Drafter, layout: Layout, options: ConvertOptions) -> QuantizedWeights | None:
    """The quantized weights of the source; None for one that has none.

    Raises:
        Refused: they are there and nobody said what to do with them, or no format that is known.
        UsageError: an option is about quantized weights and there are none, or two contradict each other.
    """
    flags = [f"--{name}" for name in ("dequantize", "pack") if getattr(options, name)]
    if options.unpack and not options.pack:
        raise UsageError("--unpack belongs to --pack", cure="use --dequantize to write floats only")
    if drafter.facts.quantization is None:
        if flags:
            raise UsageError(f"{flags[0]} is about quantized drafters, this one is not quantized")
        if options.from_format:
            raise UsageError("--from-format is about quantized drafters, this one is not quantized")
        return None
    if not flags:
        raise Refused(
            f"this drafter is quantized: {drafter.facts.quantization}",
            why="its integers are packed for one engine's loader, and renaming them would not make another load them",
            cure=f"{_packing_cure(drafter, layout, options)}--dequantize to write floats",
        )
    if len(flags) > 1:
        raise UsageError("--dequantize and --pack contradict each other", cure="give one of the two")
    from draftconv.quantization.weight_detection import find_quantized

    return find_quantized(drafter, options.from_format)


def _packing_cure(drafter: Drafter, layout: Layout, options: ConvertOptions) -> str:
    """How to write the same integers for whoever reads this layout; only --dequantize is left where nobody can."""
    serves = layout.writer.serves if layout.writer else ()
    if find_spec("torch") is None or not serves:
        return "add --pack FORMAT to write the same integers otherwise, or "
    from draftconv.quantization.weight_detection import find_quantized

    try:
        stored = find_quantized(drafter, options.from_format)
    except DraftconvError:  # what cannot be read is told of when it is asked for
        return "add "
    engines = [ENGINES[name] for name in serves]
    form = same_integers_for(stored, engines, drafter.facts)
    if form is None:
        return "add "
    whom = f" in a format that {engines[0].title} runs" if len(engines) == 1 else ""
    return f"add --pack {form} to write the same integers{whom or ' otherwise'}, or "
