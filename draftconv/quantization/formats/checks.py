"""What a format asks of numbers and weights before it stores, declares or believes them."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from draftconv.checkpoint import show
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.quantization.formats.base import Declared, Format, Weight
from draftconv.quantization.formats.module_tensors import SPELLED, TORCH
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import DTYPES, Granularity, InputScheme, Scheme, WeightDtype

ASYMMETRIC = "draftconv knows weights in which value 0 stands for zero"
AGAIN = "quantize again from the 16-bit weights"

ROUNDED = "engines hold these scales in the dtype of the weights, and would round them"


# ── reading ────────────────────────────────────────────────────────────────────────


def check_groups(inputs: int, count: int, granularity: Granularity | None, group: int | None) -> None:
    """Raises BadCheckpoint when rows of `inputs` do not have the number of scales that is declared."""
    if group is not None:
        right = inputs == count * group
    elif granularity == "channel":
        right = count == 1
    else:
        right = count > 0 and inputs % count == 0
    if not right:
        grouping = f"groups of {group}" if group else granularity or "groups of one size"
        raise BadCheckpoint(f"{count} scales for {inputs} inputs are not {grouping}")


def check_range(qvalues: Tensor, dtype: WeightDtype) -> None:
    """Raises BadCheckpoint when integers are out of the dtype's range; of no values (meta) none is."""
    if qvalues.numel() == 0 or qvalues.is_meta:
        return
    low, high = (int(bound) for bound in torch.aminmax(qvalues))
    spec = DTYPES[dtype]
    if low < spec.low or high > spec.high:
        raise BadCheckpoint(
            f"quantized values from {low} to {high} are no {spec.title}",
            why=f"{spec.title} goes from {spec.low:.0f} to {spec.high:.0f}",
        )


def quantized(dtype: WeightDtype, qvalues: Tensor, scale: Tensor) -> RoundedWeight:
    """Quantized values [O, I] under scales [O, G] or [1, 1], of the dtypes whose scales have no unit."""
    return RoundedWeight(dtype, qvalues, scale, torch.ones((), device=qvalues.device))


# ── writing ────────────────────────────────────────────────────────────────────────


def check_scheme(
    format: Format, dtype: WeightDtype, granularity: Granularity | None, inputs: InputScheme | None
) -> None:
    """Raises Refused when the format has no room for such numbers; `granularity` None is yet to be seen."""
    if not any(dtype == known and granularity in (None, per) for known, per in format.holds):
        known = sorted(f"{DTYPES[held].title} per {per}" for held, per in format.holds)
        raise Refused(
            f"{format.title} holds no {DTYPES[dtype].title} weights" + (f" per {granularity}" if granularity else ""),
            why=f"it holds {', '.join(known)}",
        )
    if inputs not in format.inputs:
        raise Refused(
            f"{format.title} cannot declare activations as {inputs or '16 bit'}",
            why=f"it declares {', '.join(sorted(str(known or '16 bit') for known in format.inputs))}",
        )


def check_declared(format: Format, declared: Declared) -> None:
    """Raises Refused when the format cannot declare such numbers, UsageError when they are not all told."""
    check_scheme(format, declared.dtype, declared.granularity, declared.inputs)
    check_style(format, declared.style)
    if declared.granularity is None or (declared.granularity == "group") != (declared.group is not None):
        raise UsageError(
            f"{format.title}: scales per {declared.granularity or 'what'} "
            f"of {declared.group or 'any number of'} inputs",
            why="config.json has to say how many scales a row has",
        )


def check_shape(format: Format, shape: tuple[int, int], scheme: Scheme, *, outputs: int = 1, inputs: int = 1) -> None:
    """Raises Refused when a weight [O, I] is no multiple of groups, or of `outputs` and `inputs`."""
    check_scheme(format, scheme.weights.dtype, scheme.weights.granularity, scheme.inputs)
    multiples = (
        (shape[0], outputs, "outputs"),
        (shape[1], inputs, "inputs"),
        (shape[1], scheme.weights.group, "inputs"),
    )
    for size, multiple, what in multiples:
        if multiple and size % multiple:
            raise Refused(
                f"{format.title}: {size} {what} are no multiple of {multiple}",
                why=f"quantized values and scales come in groups of {multiple}",
                cure="exclude the weight",
            )


def check_style(format: Format, style: str | None) -> None:
    """Raises UsageError for a style that the format does not have."""
    if style is not None and style not in format.styles:
        known = f"it has {', '.join(format.styles)}" if format.styles else "it has one"
        raise UsageError(f"{format.title} has no style {show(style)}", why=known)


def scale_dtype(format: Format, scheme: Scheme, dtype: str, wide: Collection[WeightDtype] = ()) -> str:
    """What scales will be stored in, for weights of this dtype.

    Args:
        wide: dtypes whose scales engines hold in float32; those of the others have the weight's dtype.

    Raises:
        Refused: engines would round them.
    """
    own = _own(dtype)
    if scheme.weights.scale_dtype == "weight" or own == "F32":
        return own
    if scheme.weights.dtype not in wide:
        raise Refused(
            f"{format.title} has no room for F32 scales of {dtype} weights", why=ROUNDED, cure="scale_dtype: weight"
        )
    return "F32"


def scale_of(format: Format, weight: Weight, wide: Collection[WeightDtype] = ()) -> Tensor:
    """The scales in a dtype that `scale_dtype` foretells, and never another value.

    Raises:
        Refused: no such dtype holds them.
    """
    scale, own = weight.quantized.scale, _own(weight.dtype)
    if SPELLED[scale.dtype] == own:
        return scale
    if weight.quantized.dtype in wide:
        return scale.float()
    stored = scale.to(TORCH[own])
    if not torch.equal(stored.double(), scale.double()):
        raise Refused(
            f"{format.title} would change scales from {SPELLED[scale.dtype]} to {own}",
            why=ROUNDED,
            cure="dequantize the weight",
        )
    return stored


def _own(dtype: str) -> str:
    return "F32" if dtype == "F64" else dtype


def check_weight(format: Format, weight: Weight, *, input_scale: bool = False) -> None:
    """Raises Refused when a weight is of a dtype that the format does not hold, or would lose something.

    Args:
        input_scale: the format stores it.
    """
    dtype, smoothing = weight.quantized.dtype, weight.pre_quant_scale
    if dtype not in {held for held, _ in format.holds}:
        raise Refused(f"{format.title} holds no {DTYPES[dtype].title} weights")
    if smoothing is not None and not bool((smoothing == 1).all()):
        raise Refused(
            f"{format.title} cannot store pre_quant_scale",
            why="activations would no longer be multiplied by it, and the weights were divided by it",
            cure="dequantize the weights",
        )
    if weight.input_scale is not None and not input_scale:
        raise Refused(
            f"{format.title} cannot store input_scale",
            why="activations would no longer be rounded as they were calibrated",
        )
