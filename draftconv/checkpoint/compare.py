"""Looking at every value of a tensor: faults within one, differences between two."""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.checkpoint.tensors import NUMPY, TensorRef, row_blocks

BLOCK = 8 * 1024 * 1024
"""Source bytes held at a time."""

_EXPONENTS = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F80_0000, "F64": 0x7FF0_0000_0000_0000}
"""All exponent bits set mean infinity or NaN; integer tests need no widening of BF16."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look at every value of a float tensor found."""

    not_finite: int
    first: int | None
    """Flat index of the first NaN or infinity."""
    all_zero: bool


def scan(ref: TensorRef) -> Scan:
    """Count NaN and infinities of a BF16, F16, F32 or F64 tensor and tell whether it is all zeros."""
    import numpy as np

    mask = _EXPONENTS[ref.dtype]
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(NUMPY[ref.dtype]).itemsize]
    count, first, zero, seen = 0, None, True, 0
    for start, stop in row_blocks(ref, BLOCK):
        values = np.frombuffer(ref.rows(start, stop), dtype=bits)
        bad = (values & bits(mask)) == mask
        if found := int(np.count_nonzero(bad)):
            first = seen + int(np.argmax(bad)) if first is None else first
            count += found
        # -0.0 is a zero too: drop the sign bit
        zero = zero and not np.any(values << 1)
        seen += values.size
    return Scan(count, first, zero and seen > 0)


def first_difference(mine: TensorRef, theirs: TensorRef) -> int | None:
    """First row in which two float tensors of equal shape differ in value, or None.

    Equal dtypes are compared bit by bit; different ones after widening to float32.
    """
    import numpy as np

    from draftconv.checkpoint.tensors import as_float32

    same = mine.dtype == theirs.dtype
    for start, stop in row_blocks(mine, BLOCK):
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
