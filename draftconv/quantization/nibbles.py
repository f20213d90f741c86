"""Eight 4-bit integers in one 32-bit word, in the two orders that Quark writes.

Slot i of a word holds bits 4i...4i+3. In `order` slot i holds element i; in `reorder` it
holds element (0, 2, 4, 6, 1, 3, 5, 7)[i], which is AutoAWQ's order too. Source: amd-quark
0.13 `torch/utils/pack.py`, run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from draftconv.errors import UsageError

Order = Literal["order", "reorder"]

SLOTS: Mapping[Order, tuple[int, ...]] = {
    "order": (0, 1, 2, 3, 4, 5, 6, 7),
    "reorder": (0, 2, 4, 6, 1, 3, 5, 7),
}


def pack(codes: Tensor, order: Order) -> Tensor:
    """Two's complement nibbles to words along the last axis.

    Args:
        codes: int8 [..., 8 * n], each -8...7 (or 0...15 for unsigned codes).

    Returns:
        int32 [..., n].

    Raises:
        UsageError: the last axis is no multiple of 8.
    """
    if codes.shape[-1] % 8:
        raise UsageError(
            f"{codes.shape[-1]} codes do not fill 32-bit words",
            why="a word holds eight 4-bit codes",
            cure="pack along an axis that is a multiple of 8",
        )
    eights = torch.unflatten(codes, -1, (-1, 8))
    words = torch.zeros(eights.shape[:-1], dtype=torch.int32, device=codes.device)
    for slot, element in enumerate(SLOTS[order]):
        words |= (eights[..., element].to(torch.int32) & 0xF) << 4 * slot
    return words


def unpack(words: Tensor, order: Order) -> Tensor:
    """The inverse of `pack` for signed codes: int32 [..., n] to int8 [..., 8 * n]."""
    codes = torch.empty((*words.shape, 8), dtype=torch.int8, device=words.device)
    for slot, element in enumerate(SLOTS[order]):
        # To the top, then back with the sign.
        codes[..., element] = words << (28 - 4 * slot) >> 28
    return codes.flatten(-2)
