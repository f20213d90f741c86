"""Codes: the nearest value of a grid, how it is stored, and what is read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from draftconv.quantization.scheme import GRIDS, GridName

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of codes 0...7; codes 8...15 are their negatives. Source: OCP Microscaling Formats v1.0."""


STORED: Mapping[GridName, torch.dtype] = {
    "int4": torch.int8,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "nvfp4": torch.uint8,
    "mxfp4": torch.uint8,
}
"""What holds one code."""


def nearest(x: Tensor, grid: GridName) -> Tensor:
    """The nearest value of the grid, ties to even; float32, any shape. Overwrites `x`."""
    return _NEAREST[grid](x)


def encode(values: Tensor, grid: GridName) -> Tensor:
    """Values of the grid as they are stored, one to an element of `STORED`."""
    if grid in ("nvfp4", "mxfp4"):
        values = torch.bucketize(values.abs(), values.new_tensor(E2M1), out_int32=True) + 8 * values.signbit()
    return values.to(STORED[grid])


def decode(codes: Tensor, grid: GridName) -> Tensor:
    """The inverse of `encode`, float32."""
    if grid in ("nvfp4", "mxfp4"):
        table = torch.tensor((*E2M1, *(-value for value in E2M1)), device=codes.device)
        return table[codes.to(torch.int32)]
    return codes.float()


def _integer(x: Tensor, grid: GridName) -> Tensor:
    return x.round_().clamp_(GRIDS[grid].low, GRIDS[grid].high)


def _e4m3(x: Tensor) -> Tensor:
    # Clamped first: beyond 464 the cast gives NaN, where engines saturate.
    return x.clamp_(GRIDS["fp8"].low, GRIDS["fp8"].high).to(torch.float8_e4m3fn).float()


def _e2m1(x: Tensor) -> Tensor:
    x = x.clamp_(-6, 6).add_(0.0)  # -0.0 becomes 0.0; negatives that round to zero keep their sign, as in ModelOpt
    magnitude = x.abs()
    spacing = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return x.div_(spacing).round_().mul_(spacing)


_NEAREST: Mapping[GridName, Callable[[Tensor], Tensor]] = {
    "int4": lambda x: _integer(x, "int4"),
    "int8": lambda x: _integer(x, "int8"),
    "fp8": _e4m3,
    "nvfp4": _e2m1,
    "mxfp4": _e2m1,
}
