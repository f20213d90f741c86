"""Casts between F16, BF16, F32 and F64 in numpy: one rounding, to nearest even, no surprise.

A NaN stays a NaN of the same sign (quieted, as IEEE 754 conversions do), an infinity stays
one, and a finite value that would become infinite is refused instead. `convert` works without torch, and torch
(2.13) rounds F64 to BF16 by way of F32: 1 + 2⁻⁸ + 2⁻³⁰ becomes 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from draftconv.checkpoint.dtypes import SIZES
from draftconv.checkpoint.text import show
from draftconv.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FloatBits:
    """Where a float dtype keeps what, so that NaN, infinity and zero are integer tests (IEEE 754).

    Attributes:
        kind: numpy's unsigned type of the same width.
        exponent: mask of the exponent; alone it is infinity, with any bit below it NaN.
        quiet: the bit that makes a NaN a quiet one.
        magnitude: mask of all but the sign; nothing of it set is a zero, -0.0 too.
    """

    kind: str
    exponent: int
    quiet: int
    magnitude: int


FLOAT_BITS: Mapping[str, FloatBits] = MappingProxyType(
    {
        "F16": FloatBits("<u2", 0x7C00, 0x0200, 0x7FFF),
        "BF16": FloatBits("<u2", 0x7F80, 0x0040, 0x7FFF),
        "F32": FloatBits("<u4", 0x7F80_0000, 0x0040_0000, 0x7FFF_FFFF),
        "F64": FloatBits("<u8", 0x7FF0_0000_0000_0000, 0x0008_0000_0000_0000, 0x7FFF_FFFF_FFFF_FFFF),
    }
)

_NUMPY_FLOATS = MappingProxyType({"F16": "<f2", "F32": "<f4", "F64": "<f8"})
"""numpy's own float types."""


def cast(bits: NDArray[Any], source: str, target: str, name: str) -> NDArray[Any]:
    """The values of `bits`, rounded to `target` and returned as bits again.

    Args:
        bits: unsigned integers of the width of `source`, any shape.
        name: the tensor, for the message.

    Raises:
        Refused: a finite value is too large for `target`.
    """
    import numpy as np

    if source == target:
        return bits
    if SIZES[source] == SIZES[target] == 16:
        out: NDArray[Any] = np.take(_table(source, target), bits, mode="clip")
    else:
        out = _convert(bits, source, target)
    _refuse_overflow(bits, source, out, target, name)
    return out


@cache
def _table(source: str, target: str) -> NDArray[Any]:
    """The result for every 16-bit pattern: faster than arithmetic, and as fast for tiny values."""
    import numpy as np

    return _convert(np.arange(1 << 16, dtype="<u2"), source, target)


def _convert(bits: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    """Round without looking at overflow."""
    import numpy as np

    values = widened(bits, source)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rounded = _to_bf16(values) if target == "BF16" else values.astype(_NUMPY_FLOATS[target])
    out = rounded.view(FLOAT_BITS[target].kind)
    _quiet(out, target)
    return out


def widened(bits: NDArray[Any], source: str) -> NDArray[Any]:
    """Bits of `source` as numpy floats that hold each of its values exactly: float32, or float64 for F64."""
    import numpy as np

    if source == "BF16":
        wide = bits.astype("<u4")
        wide <<= 16
        return wide.view("<f4")
    values = bits.view(_NUMPY_FLOATS[source])
    return values.astype(np.float32) if source == "F16" else values


def _to_bf16(values: NDArray[Any]) -> NDArray[Any]:
    """Round float32 or float64 values to BF16 bits."""
    import numpy as np

    single = values.astype("<f4", copy=False)
    wide = single.view("<u4")
    nan = np.isnan(single)
    if values.dtype.itemsize == 8:
        wide = _round_to_odd(values, single)
    rounded = wide + (((wide >> 16) & 1) + np.uint32(0x7FFF))
    out: NDArray[Any] = (rounded >> 16).astype("<u2")
    if nan.any():
        # the carry of the rounding would turn a NaN with a full payload into something else
        out[nan] = (wide[nan] >> 16) | FLOAT_BITS["BF16"].quiet
    return out


def _round_to_odd(values: NDArray[Any], single: NDArray[Any]) -> NDArray[Any]:
    """float32 bits of float64 values, inexact ones made odd, so that a second rounding is right."""
    import numpy as np

    back = single.astype("<f8")
    wide = single.view("<u4") - (np.abs(back) > np.abs(values))
    wide |= (back != values) & ~np.isnan(values)
    odd: NDArray[Any] = wide.astype("<u4", copy=False)
    return odd


def _quiet(out: NDArray[Any], target: str) -> None:
    float_bits = FLOAT_BITS[target]
    nan = (out & float_bits.magnitude) > float_bits.exponent
    if nan.any():
        out[nan] |= float_bits.quiet


def _refuse_overflow(bits: NDArray[Any], source: str, out: NDArray[Any], target: str, name: str) -> None:
    import numpy as np

    float_bits = FLOAT_BITS[target]
    infinite = (out & float_bits.magnitude) == float_bits.exponent
    if not infinite.any():
        return
    values = widened(bits[infinite], source)
    lost = values[np.isfinite(values)]
    if lost.size:
        raise Refused(
            f"tensor {show(name)} holds {float(lost[0])!r}, which {target} cannot hold",
            why="it would become infinity and every token after it NaN",
            cure="keep this tensor in its own dtype or choose BF16 or F32",
        )


def cast_bytes(data: bytes, source: str, target: str, name: str) -> bytes:
    """Cast the values of a small tensor that is held as bytes; see `cast`."""
    import numpy as np

    return cast(np.frombuffer(data, dtype=FLOAT_BITS[source].kind), source, target, name).tobytes()
