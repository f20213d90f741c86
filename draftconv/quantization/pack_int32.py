"""Eight 4-bit integers in one 32-bit word, in the two orders that Quark writes.

Slot i of a word holds bits 4i...4i+3. In `order` slot i holds element i; in `reorder` it
holds element (0, 2, 4, 6, 1, 3, 5, 7)[i], which is AutoAWQ's order too. Source: amd-quark
0.13 `torch/utils/pack.py`, run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from draftconv.errors import UsageError

Order = Literal["order", "reorder"]

SLOTS: Mapping[Order, tuple[int, ...]] = {
    "order": (0, 1, 2, 3, 4, 5, 6, 7),
    "reorder": (0, 2, 4, 6, 1, 3, 5, 7),
}

OFFSET = -0x77777778
"""0x88888888 as int32: XOR with it turns words of two's complement nibbles into words of value + 8, and back."""

FOLDS: Mapping[Order, tuple[tuple[int, int], ...]] = {
    "order": ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)),
    "reorder": ((12, 0x0000FFFF0000FFFF), (-8, 0x00FF00FF00FF00FF), (24, 0x00000000FFFFFFFF)),
}
"""How eight bytes of one nibble each become a word: x = (x | x >> shift) & mask, thrice.

Eight quantized values are one 64-bit integer to the arithmetic, so a word costs ten operations and not forty.
Bytes are taken as little-endian, as safetensors has them.
"""

_NIBBLES = 0x0F0F0F0F0F0F0F0F
_AT_ONCE = 1 << 16  # words whose quantized values stay in a core's cache


def pack(qvalues: Tensor, order: Order) -> Tensor:
    """Two's complement nibbles to words along the last axis.

    Args:
        qvalues: int8 [..., 8 * n], each -8...7 (or uint8, 0...15, for unsigned values).

    Returns:
        int32 [..., n].

    Raises:
        UsageError: the last axis is no multiple of 8.
    """
    if qvalues.shape[-1] % 8:
        raise UsageError(
            f"{qvalues.shape[-1]} quantized values do not fill 32-bit words",
            why="a word holds eight 4-bit codes",
            cure="pack along an axis that is a multiple of 8",
        )
    words = torch.empty(*qvalues.shape[:-1], qvalues.shape[-1] // 8, dtype=torch.int32, device=qvalues.device)
    flat_W, eights_W8 = words.view(-1), qvalues.reshape(-1, 8)
    for at in _blocks(len(flat_W)):
        # A copy, because 64-bit integers may not start anywhere.
        bytes_W8 = eights_W8[at].clone(memory_format=torch.contiguous_format)
        x_W = bytes_W8.view(torch.int64).squeeze(-1).bitwise_and_(_NIBBLES)
        for shift, mask in FOLDS[order]:
            x_W.bitwise_or_(_shifted(x_W, shift)).bitwise_and_(mask)
        flat_W[at] = x_W
    return words


def unpack(words: Tensor, order: Order) -> Tensor:
    """The inverse of `pack` for signed values: int32 [..., n] to int8 [..., 8 * n]; of no values (meta), none."""
    qvalues = torch.empty(*words.shape[:-1], words.shape[-1] * 8, dtype=torch.int8, device=words.device)
    if words.is_meta:
        return qvalues
    flat_W, eights_W8 = words.reshape(-1), qvalues.view(-1, 8)
    masks = (_NIBBLES, *(mask for _, mask in FOLDS[order]))
    for at in _blocks(len(flat_W)):
        x_W = flat_W[at].to(torch.int64).bitwise_and_(masks[-1])
        for (shift, _), mask in zip(reversed(FOLDS[order]), reversed(masks[:-1]), strict=True):
            x_W.bitwise_or_(_shifted(x_W, -shift)).bitwise_and_(mask)
        # 0...15 to -8...7, byte by byte
        eights_W8[at] = x_W.view(torch.int8).bitwise_xor_(8).sub_(8).view(-1, 8)
    return qvalues


def _shifted(x: Tensor, right: int) -> Tensor:
    return x >> right if right > 0 else x << -right


def _blocks(count: int) -> Iterator[slice]:
    return (slice(first, first + _AT_ONCE) for first in range(0, count, _AT_ONCE))
