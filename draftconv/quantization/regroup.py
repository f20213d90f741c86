"""The same weight under more scales or fewer: exact, or refused. And, where it is asked for, under rounded ones."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from draftconv.errors import Refused
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.formats.module_tensors import TORCH
from draftconv.quantization.rounding import RoundedWeight, dequantize
from draftconv.quantization.scheme import DTYPES, Granularity

ROWS = 256
"""Rows whose values are held at a time."""


def regroup(weight: Weight, group: int | None) -> Weight:
    """A weight with a scale for every `group` inputs, or per channel; quantized values and what they stand for stay.

    Args:
        group: inputs under one scale; None is one scale per row.

    Raises:
        Refused: no such group fits, or scales that would become one differ.
    """
    scale_OG, inputs = weight.quantized.scale, weight.quantized.qvalues.shape[1]
    spec = DTYPES[weight.quantized.dtype]
    if not {"channel", "group"} <= set(spec.granularity):
        raise Refused(f"{spec.title} weights are not scaled per channel and per group alike")
    size = group or inputs
    if inputs % size:
        raise Refused(f"{inputs} inputs are no multiple of the group of {size}")
    current = inputs // scale_OG.shape[1]
    # Where neither size divides the other, a row has one scale in either or cannot be regrouped.
    folded_OG = scale_OG if current % size == 0 else _folded(scale_OG, size if size % current == 0 else inputs, current)
    regrouped = folded_OG.repeat_interleave(inputs // size // folded_OG.shape[1], 1)
    granularity: Granularity = "channel" if group is None else "group"
    return replace(weight, quantized=replace(weight.quantized, scale=regrouped), granularity=granularity)


def _folded(scale_OG: Tensor, size: int, current: int) -> Tensor:
    """One scale for every `size` inputs where there was one for every `current`."""
    scale_OGn = torch.unflatten(scale_OG, 1, (-1, size // current))
    first_OG = scale_OGn[..., 0]
    if differing := int((scale_OGn != first_OG[..., None]).any(-1).any(-1).sum()):
        raise Refused(
            f"{differing} of {len(scale_OG)} rows have scales that differ within {size} inputs",
            why="one scale for all of them would change the weights",
            cure="keep the groups, or quantize again from the 16-bit weights",
        )
    return first_OG


def round_scales(weight: Weight, name: str) -> Weight:
    """A weight whose scales were rounded to the dtype that it stands for; its quantized values stay.

    Raises:
        Refused: a scale is no number of that dtype, so that rounding changes it by more than `rounding`.
    """
    scale, dtype = weight.quantized.scale, TORCH[weight.dtype]
    narrow = scale.to(dtype)
    if bool(((narrow.double() - scale.double()).abs() > rounding(weight.dtype) * scale.double()).any()):
        raise Refused(
            f"{name} has scales that {weight.dtype} does not hold",
            why="they would become infinite, zero or coarse",
            cure="use --dequantize instead of --pack",
        )
    return replace(weight, quantized=replace(weight.quantized, scale=narrow))


def scales_fit(weight: Weight) -> bool:
    """Whether the dtype that a weight stands for holds every one of its scales, to the bit."""
    scale = weight.quantized.scale
    return torch.equal(scale.to(TORCH[weight.dtype]).to(scale.dtype), scale)


def rounding(dtype: str) -> float:
    """The largest part of itself that a number changes by when it is rounded to this dtype."""
    return torch.finfo(TORCH[dtype]).eps / 2


def same_values(one: RoundedWeight, other: RoundedWeight) -> bool:
    """Whether two weights stand for the same float32 values, compared in blocks of rows."""
    if one.qvalues.shape != other.qvalues.shape:
        return False
    starts = range(0, len(one.qvalues), ROWS)
    return all(torch.equal(*(dequantize(weight.rows(at, at + ROWS)) for weight in (one, other))) for at in starts)
