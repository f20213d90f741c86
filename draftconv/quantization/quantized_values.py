"""Quantized values: the nearest value of a dtype, how it is stored, and what is read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from draftconv.quantization.scheme import DTYPES, WeightDtype

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of values 0...7; values 8...15 are their negatives. Source: OCP Microscaling Formats v1.0."""


STORED: Mapping[WeightDtype, torch.dtype] = {
    "int4": torch.int8,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "nvfp4": torch.uint8,
    "mxfp4": torch.uint8,
}
"""What holds one code."""


def nearest(x: Tensor, dtype: WeightDtype) -> Tensor:
    """The nearest value of the dtype, ties to even; float32, any shape. Overwrites `x`."""
    return _NEAREST[dtype](x)


def encode(values: Tensor, dtype: WeightDtype) -> Tensor:
    """Values of the dtype as they are stored, one to an element of `STORED`."""
    if dtype in ("nvfp4", "mxfp4"):
        values = torch.bucketize(values.abs(), values.new_tensor(E2M1), out_int32=True) + 8 * values.signbit()
    return values.to(STORED[dtype])


def decode(qvalues: Tensor, dtype: WeightDtype) -> Tensor:
    """The inverse of `encode`, float32."""
    if dtype in ("nvfp4", "mxfp4"):
        table = torch.tensor((*E2M1, *(-value for value in E2M1)), device=qvalues.device)
        return table[qvalues.to(torch.int32)]
    return qvalues.float()


def _integer(x: Tensor, dtype: WeightDtype) -> Tensor:
    return x.round_().clamp_(DTYPES[dtype].low, DTYPES[dtype].high)


def _e4m3(x: Tensor) -> Tensor:
    # Clamped first: beyond 464 the cast gives NaN, where engines saturate.
    return x.clamp_(DTYPES["fp8"].low, DTYPES["fp8"].high).to(torch.float8_e4m3fn).float()


def _e2m1(x: Tensor) -> Tensor:
    x = x.clamp_(-6, 6).add_(0.0)  # -0.0 becomes 0.0; negatives that round to zero keep their sign, as in ModelOpt
    magnitude = x.abs()
    spacing = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return x.div_(spacing).round_().mul_(spacing)


_NEAREST: Mapping[WeightDtype, Callable[[Tensor], Tensor]] = {
    "int4": lambda x: _integer(x, "int4"),
    "int8": lambda x: _integer(x, "int8"),
    "fp8": _e4m3,
    "nvfp4": _e2m1,
    "mxfp4": _e2m1,
}
