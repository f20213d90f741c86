"""Whether a quantized weight is what it was made from: rounded to the nearest value, or the same integers.

What is checked needs no word of the file on how scales were found. A quantized value must be the nearest one
of its dtype under the scale beside it: within its range that is an error of half a step at most, and
beyond it the outermost one. Quantized values in another order and scales that were changed afterwards fail.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.checkpoint import FLOATS, TensorRef
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.computations import BLOCK, Floats, RestoredWeight, floats, rows
from draftconv.quantization.deviation import Deviation, Sum
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.formats.checks import check_range
from draftconv.quantization.quantized_values import decode, nearest
from draftconv.quantization.quantized_weights import QuantizedWeights
from draftconv.quantization.regroup import round_scales, same_values
from draftconv.quantization.rounding import RoundedWeight, dequantize, quantize
from draftconv.quantization.scales import step
from draftconv.quantization.scheme import DTYPES, WeightScheme
from draftconv.reference.load import TORCH_DTYPES, to_torch

SLACK = 2.0**-20
"""Units of a step, and parts of a value: quantized values come from w * (1 / scale) or from w / scale, both rounded."""

ROUNDED_SCALE = 2.0**-8
"""How much smaller than its rule's a scale may be after rounding to BF16."""

SMALL = 2.0**-14
"""Weights below the smallest normal F16 may lie under a scale of 1, and round to nothing."""


@dataclass(frozen=True, slots=True)
class WeightComparison:
    """One weight, compared with what it was made from.

    Attributes:
        fault: why it cannot have been made from it; None when it can.
        how: how it was made, for a person.
        same: nothing was rounded: the weight stands for the same values, bit for bit.
    """

    fault: str | None
    how: str = ""
    same: bool = False


def compare(
    module: str,
    mine: QuantizedWeights | TensorRef,
    theirs: QuantizedWeights | TensorRef,
    *,
    again: bool = False,
    by_gptq: WeightScheme | None = None,
) -> WeightComparison:
    """Judge one weight of an output by that of its source; at least one of the two is quantized.

    Args:
        again: what is quantized on both sides was rounded again on the way.
        by_gptq: the scheme of a weight that GPTQ rounded. Its values need not be the nearest, and its scales must be
            those that the scheme gives of the source.
    """
    match mine, theirs:
        case QuantizedWeights(), QuantizedWeights() if again:
            ours, read = _load_weight(module, mine), _load_weight(module, theirs)
            if isinstance(read, WeightComparison):
                return WeightComparison(f"of the source, {read.fault}")
            return (
                ours
                if isinstance(ours, WeightComparison)
                else _compare_rounded(ours, RestoredWeight(f"{module}{WEIGHT}", theirs), by_gptq)
            )
        case QuantizedWeights(), QuantizedWeights():
            return _compare_quantized(module, mine, theirs)
        case QuantizedWeights(), TensorRef():
            ours = _load_weight(module, mine)
            return ours if isinstance(ours, WeightComparison) else _compare_rounded(ours, theirs, by_gptq)
        case TensorRef(), QuantizedWeights():
            read = _load_weight(module, theirs)
            return read if isinstance(read, WeightComparison) else _compare_restored(mine, read)
        case _:
            raise ValueError(f"{module} is quantized on neither side")


def _load_weight(module: str, stored: QuantizedWeights) -> Weight | WeightComparison:
    """A weight whose numbers are numbers, or what is wrong with them."""
    try:
        weight = stored.load(module)
        if weight.quantized.dtype in ("int4", "int8"):
            check_range(weight.quantized.qvalues, weight.quantized.dtype)
    except (BadCheckpoint, Refused) as error:
        return WeightComparison(f"{error.what}, as {stored.matches[module].format.title}")
    if tuple(weight.quantized.qvalues.shape) != stored.shapes[module]:
        needed = list(stored.shapes[module])
        return WeightComparison(f"{list(weight.quantized.qvalues.shape)}, and the drafter has {needed} there")
    fault = _scale_fault(weight)
    return WeightComparison(fault) if fault else weight


def _scale_fault(weight: Weight) -> str | None:
    quantized = weight.quantized
    step_OG = step(quantized.dtype, quantized.scale, quantized.unit)
    bad_O = ~(step_OG.isfinite() & (step_OG > 0)).all(-1)
    if bad_O.any():
        row = int(bad_O.nonzero()[0])
        return f"a scale of row {row} is {step_OG[row].min().item():g}, neither finite nor positive"
    for name, value in (("input_scale", weight.input_scale), ("pre_quant_scale", weight.pre_quant_scale)):
        if value is not None and not (value.isfinite() & (value > 0)).all():
            return f"{name} is not finite and positive"
    if quantized.dtype == "fp8" and not decode(quantized.qvalues, "fp8").isfinite().all():
        return "a quantized value is NaN"
    return None


# ── quantized from floats ──────────────────────────────────────────────────────────


def _compare_rounded(mine: Weight, theirs: Floats, by_gptq: WeightScheme | None) -> WeightComparison:
    quantized = mine.quantized
    if theirs.dtype not in FLOATS or theirs.shape != tuple(quantized.qvalues.shape):
        return WeightComparison(
            f"{list(quantized.qvalues.shape)} quantized values, {theirs.dtype} {list(theirs.shape)} in the source"
        )
    if by_gptq is not None:
        return _compare_gptq(mine, theirs, by_gptq)
    total, clipped, start = Sum(), 0, 0
    for rows_BI in rows(theirs, BLOCK):
        wide_BI, stop = rows_BI.float(), start + len(rows_BI)
        if mine.pre_quant_scale is not None:
            wide_BI = wide_BI / mine.pre_quant_scale.float()
        part = quantized.rows(start, stop)
        fault, beyond = _rounding_fault(wide_BI, part, start, TORCH_DTYPES[theirs.dtype])
        if fault:
            return WeightComparison(fault)
        clipped += beyond
        total.add(wide_BI, dequantize(part))
        start = stop
    return WeightComparison(
        None, _describe_rounding(mine, total.deviation(), clipped / max(1, quantized.qvalues.numel()))
    )


def _compare_gptq(mine: Weight, theirs: Floats, scheme: WeightScheme) -> WeightComparison:
    """Values that GPTQ chose: their scales are made again, they themselves are not."""
    quantized = mine.quantized
    total, moved, farthest, start = Sum(), 0, 0, 0
    for rows_BI in rows(theirs, BLOCK):
        part, wanted = quantized.rows(start, start + len(rows_BI)), quantize(rows_BI, scheme)
        other_B = (part.scale.float() != wanted.scale.to(part.scale.dtype).float()).any(-1)
        if other_B.any():
            row = start + int(other_B.nonzero()[0])
            return WeightComparison(f"a scale of row {row} is not the one that {scheme} gives of the source")
        apart_BI = (part.qvalues.int() - wanted.qvalues.int()).abs()
        moved, farthest = moved + int(apart_BI.count_nonzero()), max(farthest, int(apart_BI.amax()))
        total.add(rows_BI.float(), dequantize(part))
        start += len(rows_BI)
    title, share = DTYPES[quantized.dtype].title, moved / max(1, quantized.qvalues.numel())
    return WeightComparison(
        None,
        f"{title} by GPTQ under the scales that the recipe gives of the source, {share:.1%} of the values not the "
        f"nearest, by {farthest} at most; relative error {total.deviation().relative:.4f}",
    )


def _rounding_fault(
    wide_BI: Tensor, quantized: RoundedWeight, first: int, float_dtype: torch.dtype
) -> tuple[str | None, int]:
    """What is wrong with some rows, the first of them row `first`; and how many weights lie beyond its range.

    Args:
        float_dtype: of the weights before they were widened.
    """
    dtype = DTYPES[quantized.dtype]
    step_BG1 = step(quantized.dtype, quantized.scale, quantized.unit)[..., None]
    units_BGg = torch.unflatten(wide_BI, 1, (step_BG1.shape[1], -1)) / step_BG1
    values_BGg = torch.unflatten(decode(quantized.qvalues, quantized.dtype), 1, (step_BG1.shape[1], -1))
    best_BGg = nearest(units_BGg.clone(), quantized.dtype)
    allowed_BGg = (units_BGg - best_BGg).abs() + SLACK * (1 + units_BGg.abs())
    off_BGg = (units_BGg - values_BGg).abs()
    wrong_BGg = off_BGg > allowed_BGg
    if quantized.scale.numel() == 1:
        # Under a scale for the whole tensor the quotient has the weight's float_dtype first; see `Scaling.quotient`.
        wrong_BGg &= values_BGg != nearest(units_BGg.to(float_dtype).float(), quantized.dtype)
    wrong_BI = wrong_BGg.flatten(1)
    if wrong_BI.any():
        row, column = (int(index) for index in wrong_BI.nonzero()[0])
        amount = f"{int(wrong_BI.sum())} values from row {first + row} on" if wrong_BI.sum() > 1 else "one value"
        steps = off_BGg.flatten(1)[row, column].item()
        how = f"at [{first + row}, {column}] it is {steps:.3g} steps away"
        return f"{amount} not the nearest of {dtype.title}: {how}", 0
    if quantized.dtype in ("int4", "int8"):
        top_BG = units_BGg.abs().amax(-1)
        # One scale of a row that was repeated for its groups is there for the largest of them.
        repeated_B1 = (step_BG1[..., 0] == step_BG1[:, :1, 0]).all(-1, keepdim=True)
        top_BG = torch.where(repeated_B1, top_BG.amax(-1, keepdim=True), top_BG)
        idle_B = ((top_BG < dtype.high / 2) & (top_BG * step_BG1[..., 0] > SMALL)).any(-1)
        if idle_B.any():
            row = first + int(idle_B.nonzero()[0])
            return f"a scale of row {row} is more than twice what its largest weight needs", 0
    # Half a step beyond the last quantized value is what rounding costs anywhere; the scale itself was rounded too.
    high, low = (limit * (1 + ROUNDED_SCALE) for limit in (dtype.high + 0.5, dtype.low - 0.5))
    return None, int(((units_BGg > high) | (units_BGg < low)).sum())


def _describe_rounding(weight: Weight, deviation: Deviation, clipped: float) -> str:
    beyond = f", {clipped:.2%} of the weights clipped" if clipped else ""
    title = DTYPES[weight.quantized.dtype].title
    return f"{title}, every value the nearest under its scale{beyond}; relative error {deviation.relative:.4f}"


# ── quantized before ───────────────────────────────────────────────────────────────


def _compare_quantized(module: str, mine: QuantizedWeights, theirs: QuantizedWeights) -> WeightComparison:
    ours, source = _load_weight(module, mine), _load_weight(module, theirs)
    if isinstance(ours, WeightComparison):
        return ours
    if isinstance(source, WeightComparison):
        return WeightComparison(f"of the source, {source.fault}")
    if ours.quantized.dtype != source.quantized.dtype:
        dtypes = (DTYPES[weight.quantized.dtype].title for weight in (ours, source))
        return WeightComparison("{} in the output, {} in the source".format(*dtypes))
    if not torch.equal(_bits(ours.quantized.qvalues), _bits(source.quantized.qvalues)):
        row = int((_bits(ours.quantized.qvalues) != _bits(source.quantized.qvalues)).any(-1).nonzero()[0])
        return WeightComparison(f"other integers than the source's, first in row {row}")
    if not _same_weights(ours, source):
        if _scales_narrowed(ours, source):
            title = DTYPES[ours.quantized.dtype].title
            return WeightComparison(None, f"the same {title} values, their scales rounded once to {ours.dtype}")
        row = int((floats(ours) != floats(source)).any(-1).nonzero()[0])
        return WeightComparison(f"the source's integers under other scales, first in row {row}")
    if not (_same_scales(ours.pre_quant_scale, source.pre_quant_scale) and _inputs_follow(ours, source)):
        return WeightComparison("the source's weights, but its activations are scaled otherwise")
    return WeightComparison(
        None, f"the same {DTYPES[ours.quantized.dtype].title} values under the same scales", same=True
    )


def _same_weights(ours: Weight, source: Weight) -> bool:
    """Whether two weights stand for the same values; in blocks of rows where nothing smooths their inputs."""
    if ours.pre_quant_scale is None and source.pre_quant_scale is None:
        return same_values(ours.quantized, source.quantized)
    return torch.equal(floats(ours), floats(source))


def _scales_narrowed(ours: Weight, source: Weight) -> bool:
    """Whether only the scales differ, and are the source's rounded to the dtype of the weight."""
    if not (_same_scales(ours.pre_quant_scale, source.pre_quant_scale) and _inputs_follow(ours, source)):
        return False
    try:
        return same_values(ours.quantized, round_scales(source, "the weight").quantized)
    except Refused:
        return False


def _inputs_follow(ours: Weight, source: Weight) -> bool:
    """Whether the scale of activations is the source's, or left out with them, which is told apart from weights."""
    return ours.input_scale is None or _same_scales(ours.input_scale, source.input_scale)


def _bits(qvalues: Tensor) -> Tensor:
    return qvalues.view(torch.uint8)


def _same_scales(ours: Tensor | None, theirs: Tensor | None) -> bool:
    return ours is theirs or (ours is not None and theirs is not None and torch.equal(ours.float(), theirs.float()))


def _compare_restored(mine: TensorRef, theirs: Weight) -> WeightComparison:
    title = DTYPES[theirs.quantized.dtype].title
    shape = list(theirs.quantized.qvalues.shape)
    if mine.dtype not in FLOATS or list(mine.shape) != shape:
        return WeightComparison(f"{mine.dtype} {list(mine.shape)} in the output, {shape} {title} values in the source")
    restored_OI = floats(theirs, TORCH_DTYPES[mine.dtype])
    stored_OI = to_torch(mine)
    unequal_O = (restored_OI.view(torch.uint8) != stored_OI.view(torch.uint8)).any(-1)
    if unequal_O.any():
        return WeightComparison(f"not what the {title} values stand for, first in row {int(unequal_O.nonzero()[0])}")
    rounded = "" if mine.dtype == "F32" else f", rounded once to {mine.dtype}"
    return WeightComparison(None, f"what the {title} values stand for{rounded}")
