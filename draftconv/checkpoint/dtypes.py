"""The number types of safetensors and how much room they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from draftconv import limits
from draftconv.checkpoint.text import show
from draftconv.errors import BadCheckpoint

SIZES: Mapping[str, int] = MappingProxyType(
    {
        "BOOL": 8,
        "F4": 4,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "U8": 8,
        "I8": 8,
        "F8_E5M2": 8,
        "F8_E4M3": 8,
        "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8,
        "I16": 16,
        "U16": 16,
        "F16": 16,
        "BF16": 16,
        "I32": 32,
        "U32": 32,
        "F32": 32,
        "C64": 64,
        "F64": 64,
        "I64": 64,
        "U64": 64,
    }
)
"""Bits per element of every dtype that safetensors 0.8 knows (safetensors/src/tensor.rs)."""

FLOATS: frozenset[str] = frozenset({"F16", "BF16", "F32", "F64"})
"""The dtypes that may be cast into one another; every other tensor keeps its bits."""

_WITHIN: Mapping[str, frozenset[str]] = {"F32": frozenset({"F16", "BF16"}), "F64": frozenset({"F16", "BF16", "F32"})}
"""Dtype → those whose every value it holds."""


def cast_in_words(before: str, after: str) -> str:
    """What a cast from one float dtype to another does to values."""
    kept = before in _WITHIN.get(after, ())
    return f"{before} → {after}, {'every value exact' if kept else 'rounded to nearest even'}"


_MAX_ELEMENTS = 2**63 - 1


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor.

    Raises:
        BadCheckpoint: unknown dtype, negative or absurd shape, or a size that ends inside a byte.
    """
    bits = SIZES.get(dtype)
    if bits is None:
        raise BadCheckpoint(f"unknown dtype {show(dtype)}", cure=f"known ones: {', '.join(SIZES)}")
    limits.RANK.check(len(shape), f"a shape of {len(shape)} dimensions")
    if any(size < 0 for size in shape):
        raise BadCheckpoint(f"a negative size in shape {show(list(shape))}")
    # safetensors multiplies from the left and refuses on overflow, whatever a later 0 would make of it
    if math.prod(max(size, 1) for size in shape) > _MAX_ELEMENTS // bits:
        raise BadCheckpoint(f"an absurd shape {show(list(shape))}: more bytes than an address can hold")
    total = math.prod(shape) * bits
    if total % 8:
        raise BadCheckpoint(f"shape {show(list(shape))} of {dtype} does not end on a whole byte")
    return total // 8
