"""Looking at every value of a tensor: faults within one, differences between two."""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.checkpoint.casts import FLOAT_BITS
from draftconv.checkpoint.progress import ByteCounter
from draftconv.checkpoint.tensors import TensorRef, as_float32, row_blocks

BLOCK = 8 * 1024 * 1024
"""Source bytes held at a time."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look at every value of a float tensor found."""

    not_finite: int
    first: int | None
    """Flat index of the first NaN or infinity."""
    all_zero: bool


def scan(ref: TensorRef, tally: ByteCounter | None = None) -> Scan:
    """Count NaN and infinities of a BF16, F16, F32 or F64 tensor and tell whether it is all zeros.

    Args:
        tally: told the bytes of every block that was read.
    """
    import numpy as np

    tally = tally or ByteCounter()
    float_bits = FLOAT_BITS[ref.dtype]
    count, first, zero, seen = 0, None, True, 0
    for start, stop in row_blocks(ref, BLOCK):
        bits = np.frombuffer(ref.rows(start, stop), dtype=float_bits.kind)
        bad = (bits & float_bits.exponent) == float_bits.exponent
        if bad_count := int(np.count_nonzero(bad)):
            first = seen + int(np.argmax(bad)) if first is None else first
            count += bad_count
        zero = zero and not np.any(bits & float_bits.magnitude)
        seen += bits.size
        tally.add(bits.nbytes)
    return Scan(count, first, zero and seen > 0)


def first_difference(mine: TensorRef, theirs: TensorRef, tally: ByteCounter | None = None) -> int | None:
    """First row in which two float tensors of equal shape differ in value, or None.

    Equal dtypes are compared bit by bit; different ones after widening to float32.

    Args:
        tally: told the bytes of every block that was read, those of both tensors.
    """
    import numpy as np

    tally = tally or ByteCounter()
    same = mine.dtype == theirs.dtype
    for start, stop in row_blocks(mine, BLOCK):
        tally.add((stop - start) * (mine.row_bytes + theirs.row_bytes))
        if same:
            left, right = mine.rows(start, stop), theirs.rows(start, stop)
            if left == right:
                continue
            size = mine.row_bytes
            return start + next(
                i for i in range(stop - start) if left[i * size : (i + 1) * size] != right[i * size : (i + 1) * size]
            )
        a, b = as_float32(mine, start, stop), as_float32(theirs, start, stop)
        unequal = (a.view(np.uint32) != b.view(np.uint32)).reshape(stop - start, -1).any(axis=1)
        if unequal.any():
            return start + int(np.argmax(unequal))
    return None
