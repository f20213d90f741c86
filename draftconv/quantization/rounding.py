"""Rounding to a dtype and back, in torch, on any device and in blocks of rows.

Shapes: O output rows, I inputs, G scales of a row (1 per channel, I / group per group),
g inputs under one scale. Arithmetic is float32 whatever the weight's dtype, as in Quark
and ModelOpt; a result does not depend on how many rows are handed over at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.quantization.binned_search import fits, search_rows
from draftconv.quantization.quantized_values import STORED, decode, encode, nearest
from draftconv.quantization.scales import FP8_MAX, Scaling, step
from draftconv.quantization.scheme import DTYPES, InputScheme, WeightDtype, WeightScheme

InputScales: TypeAlias = Mapping[str, Tensor]
"""Module → the stored scale of its static activations, float32 []."""

AT_ONCE = 1 << 18
"""Elements of a block: a few float32 copies of it stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class RoundedWeight:
    """A weight rounded to its dtype.

    Attributes:
        qvalues: [O, I]; int8 for int4 and int8, float8_e4m3fn for fp8, and for the FP4 dtypes
            uint8 E2M1 values 0...15, one to a byte, bit 3 the sign.
        scale: [O, G], or [1, 1] per tensor, in its stored dtype; uint8 for mxfp4, the
            exponent plus 127.
        unit: float32 []: what `scale` is multiples of; nvfp4 stores it, on the other dtypes it is 1.
    """

    dtype: WeightDtype
    qvalues: Tensor
    scale: Tensor
    unit: Tensor

    def rows(self, start: int, stop: int) -> RoundedWeight:
        """Some output rows of it."""
        scale = self.scale[start:stop] if len(self.scale) == len(self.qvalues) else self.scale
        return RoundedWeight(self.dtype, self.qvalues[start:stop], scale, self.unit)


def peak(weight_OI: Tensor) -> Tensor:
    """The largest magnitude of a tensor, float32 []: what a scale for a whole tensor follows from."""
    return weight_OI.abs().amax().float()


def quantize(
    weight_OI: Tensor, scheme: WeightScheme, *, whole: Tensor | None = None, name: str = "the weight"
) -> RoundedWeight:
    """Round a weight to the scheme's dtype.

    Args:
        weight_OI: [O, I], floating; F64 is read as F32.
        whole: the `peak` of the whole tensor where these rows are a part of it, or of all
            tensors that share a scale, on the weight's device. Only `scheme.whole` schemes look at it.
        name: whose values they are, for the message.

    Raises:
        BadCheckpoint: the weight holds NaN or infinities.
        UsageError: the inputs are no multiple of the group.
    """
    rows, inputs = weight_OI.shape
    group = check_inputs(inputs, scheme, name)
    if whole is None:
        whole = peak(weight_OI) if scheme.whole else torch.ones((), device=weight_OI.device)
    scaling = Scaling.of(scheme, weight_OI.dtype, whole)
    qvalues_OI = torch.empty(rows, inputs, dtype=STORED[scheme.dtype], device=weight_OI.device)
    shape = (1, 1) if scheme.granularity == "tensor" else (rows, inputs // group)
    scale_OG = torch.empty(shape, dtype=scaling.scale_dtype, device=weight_OI.device)
    found_OG = search_rows(weight_OI, scaling, AT_ONCE) if fits(weight_OI, scaling, group) else None
    for at, rows_BI in _blocks(weight_OI):
        wide_BGg = torch.unflatten(rows_BI.float(), 1, (-1, group))
        top_BG = wide_BGg.abs().amax(-1)
        if not top_BG.isfinite().all():
            raise not_finite(name)
        if found_OG is not None:
            stored_BG = found_OG[at]
        else:
            stored_BG = scaling.fit(wide_BGg, whole.expand(1, 1) if scheme.granularity == "tensor" else top_BG)
        scale_OG[slice(1) if scheme.granularity == "tensor" else at] = stored_BG
        qvalues_OI[at] = encode(scaling.values(wide_BGg, stored_BG), scheme.dtype).flatten(1)
    return RoundedWeight(scheme.dtype, qvalues_OI, scale_OG, scaling.unit)


def check_inputs(inputs: int, scheme: WeightScheme, name: str) -> int:
    """How many inputs of a row share a scale.

    Raises:
        UsageError: the inputs are no multiple of the group.
    """
    group = scheme.group or inputs
    if inputs % group:
        raise UsageError(f"{name} has {inputs} inputs, which is no multiple of the group of {group}")
    return group


def not_finite(name: str) -> BadCheckpoint:
    """The error of a weight that cannot be quantized."""
    return BadCheckpoint(
        f"{name} holds NaN or infinite values",
        why="no scale covers them, and every quantized value beside them would be lost",
        cure="`draftconv inspect --deep` names the tensors that are not finite",
    )


def dequantize(quantized: RoundedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """What the quantized values stand for: [O, I]; a float32 product, rounded once to `dtype`.

    With int4 or int8 quantized values and a 16-bit scale the float32 product is exact.
    """
    qvalues_OI, step_OG = quantized.qvalues, step(quantized.dtype, quantized.scale, quantized.unit)
    step_OG = step_OG.expand(len(qvalues_OI), -1)
    weight_OI = torch.empty(qvalues_OI.shape, dtype=dtype, device=qvalues_OI.device)
    for at, qvalues_BI in _blocks(qvalues_OI):
        values_BGg = torch.unflatten(decode(qvalues_BI, quantized.dtype), 1, (step_OG.shape[1], -1))
        weight_OI[at] = (values_BGg * step_OG[at, :, None]).flatten(1).to(dtype)
    return weight_OI


def round_trip(x: Tensor, scheme: InputScheme) -> Tensor:
    """Activations after dynamic rounding per token, in the dtype they came in.

    Args:
        x: [..., features]; each row of features is a token.

    Source: vLLM `csrc/quantization/compressed_tensors/int8_quant_kernels.cu` (scale max/127,
    quantized values from x * (127 / max)) and `csrc/quantization/fp8/common.cu` (scale max/448 and at
    least 1 / (448 * 512), quantized values from x * (1 / scale), saturated); read.

    Raises:
        UsageError: the scale is static.
    """
    if not scheme.dynamic:
        raise UsageError(f"activations as {scheme} need scales", why="a static scale comes from calibration")
    wide = x.float()
    top = wide.abs().amax(-1, keepdim=True)
    if scheme.dtype == "int8":
        high = DTYPES["int8"].high
        values, scale = nearest(wide * torch.where(top > 0, high / top, 0), "int8"), top / high
    else:
        scale = (top / FP8_MAX).clamp_min(1 / (FP8_MAX * 512))
        values = nearest(wide * scale.reciprocal(), "fp8")
    return (values * scale).to(x.dtype)


def round_to(x: Tensor, scheme: InputScheme, scale: Tensor) -> Tensor:
    """Activations under a fixed scale, in the dtype they came in; what lies beyond is clipped.

    Args:
        x: [..., features]. `scale`: float32 [], as `input_scale` makes it.

    Source: vLLM `csrc/quantization/fp8/common.cu`, static per tensor; read.

    Raises:
        Refused: NVFP4, whose activations have a second scale per block.
    """
    refuse_unsimulated(scheme)
    return (nearest(x.float() * scale.reciprocal(), "fp8") * scale).to(x.dtype)


def refuse_unsimulated(scheme: InputScheme) -> None:
    """Raises Refused for activations that nothing here computes."""
    if scheme.dtype == "nvfp4":
        raise Refused(
            f"activations as {scheme} are not simulated",
            why="engines scale them once more per block while they run",
            cure="compare the drafter on the engine",
        )


def input_scale(peak: Tensor, scheme: InputScheme) -> Tensor:
    """The stored scale of static activations whose largest magnitude is `peak`: float32 [].

    Source: nvidia-modelopt 0.47 `torch/export/quant_utils.py` (FP8: peak / 448) and
    `torch/quantization/qtensor/nvfp4_tensor.py` (NVFP4: peak / (6 * 448)); read.

    Raises:
        UsageError: the scheme scales per token and stores nothing.
    """
    match scheme.dtype:
        case "fp8" if not scheme.dynamic:
            return peak.float() / FP8_MAX
        case "nvfp4":
            return peak.float() / (FP8_MAX * DTYPES["nvfp4"].high)
        case _:
            raise UsageError(f"activations as {scheme} have no stored scale")


def _blocks(tensor_OI: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The tensor in runs of rows of about `AT_ONCE` elements."""
    rows, inputs = tensor_OI.shape
    height = max(1, AT_ONCE // max(1, inputs))
    for first in range(0, rows, height):
        at = slice(first, min(first + height, rows))
        yield at, tensor_OI[at]
