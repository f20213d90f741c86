"""Two 4-bit values in one byte: of two neighbours along an axis, the first is in the low nibble."""

from __future__ import annotations

import torch
from torch import Tensor

from draftconv.errors import UsageError


def pack(qvalues: Tensor, axis: int) -> Tensor:
    """Nibbles to bytes.

    Args:
        qvalues: int8 or uint8, any shape; the low four bits of each are kept.
        axis: where neighbours are; it comes out half as long.

    Returns:
        uint8.

    Raises:
        UsageError: the axis is odd.
    """
    if qvalues.shape[axis] % 2:
        raise UsageError(
            f"{qvalues.shape[axis]} quantized values do not fill bytes",
            why="a byte holds two 4-bit codes",
            cure="pack along an axis that is even",
        )
    first, second = torch.unflatten(qvalues.view(torch.uint8), axis, (-1, 2)).unbind(axis % qvalues.ndim + 1)
    return (first & 0xF).bitwise_or_(second << 4)


def unpack(packed: Tensor, axis: int, *, signed: bool) -> Tensor:
    """The inverse of `pack`: uint8 to int8 -8...7 if `signed`, else to uint8 0...15."""
    axis %= packed.ndim
    wide = packed.view(torch.int8) if signed else packed
    first = wide << 4 >> 4 if signed else wide & 0xF  # of int8, the shift to the right brings the sign along
    return torch.stack((first, wide >> 4), axis + 1).flatten(axis, axis + 1)
