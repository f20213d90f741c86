"""Lazy tensors: where their bytes are, and the few ways to look at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from draftconv.checkpoint.casts import FLOAT_BITS, widened
from draftconv.checkpoint.dtypes import SIZES
from draftconv.checkpoint.files import DataFile
from draftconv.checkpoint.text import show
from draftconv.errors import BadCheckpoint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUMPY = MappingProxyType(
    {
        "BOOL": "?",
        "U8": "u1",
        "I8": "i1",
        "F8_E5M2": "u1",
        "F8_E4M3": "u1",
        "F8_E8M0": "u1",
        "F8_E4M3FNUZ": "u1",
        "F8_E5M2FNUZ": "u1",
        "I16": "<i2",
        "U16": "<u2",
        "F16": "<f2",
        "BF16": "<u2",
        "I32": "<i4",
        "U32": "<u4",
        "F32": "<f4",
        "C64": "<c8",
        "F64": "<f8",
        "I64": "<i8",
        "U64": "<u8",
    }
)
"""The numpy type that holds each dtype; the kinds numpy lacks come as their raw bits."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """One tensor of a checkpoint: dense, little-endian, row-major, not yet read.

    Attributes:
        name: as the file spells it.
        dtype: a key of `dtypes.SIZES`.
        shape: element counts; empty for a scalar.
        file, offset, nbytes: where its bytes lie.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: DataFile
    offset: int
    nbytes: int

    @property
    def row_count(self) -> int:
        """Size of the first dimension; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; BadCheckpoint when rows of a sub-byte dtype do not end on a byte."""
        if not self.row_count:
            return 0
        row, rest = divmod(self.nbytes, self.row_count)
        if rest:
            raise BadCheckpoint(f"rows of {show(self.name)} ({self.dtype}) do not end on whole bytes")
        return row

    def read(self) -> bytes:
        """All bytes of the tensor."""
        return self.file.read(self.offset, self.nbytes)

    def rows(self, start: int, stop: int) -> bytes:
        """Bytes of rows `start…stop` of the first dimension, end excluded."""
        if not 0 <= start <= stop <= self.row_count:
            raise IndexError(f"rows {start}:{stop} of {show(self.name)}, which has {self.row_count}")
        return self.file.read(self.offset + start * self.row_bytes, (stop - start) * self.row_bytes)

    def row_range(self, start: int, stop: int) -> TensorRef:
        """Rows `start…stop` as a tensor of their own, over the same bytes."""
        offset = self.offset + start * self.row_bytes
        return replace(
            self, shape=(stop - start, *self.shape[1:]), offset=offset, nbytes=(stop - start) * self.row_bytes
        )

    def numpy(self) -> NDArray[Any]:
        """The whole tensor as a read-only numpy array of its shape.

        BF16 comes as uint16 bits and the 8-bit floats as uint8 bits (see `as_float32`).

        Raises:
            BadCheckpoint: a sub-byte dtype, which numpy cannot address.
        """
        import numpy as np

        if self.dtype not in NUMPY:
            raise BadCheckpoint(f"{show(self.name)} is {self.dtype}, which numpy cannot address")
        raw = self.read()
        if self.dtype == "BOOL":
            # a byte other than 0 and 1 in a numpy bool is undefined behaviour
            flags: NDArray[Any] = np.frombuffer(raw, dtype=np.uint8) != 0
            return flags.reshape(self.shape)
        return np.frombuffer(raw, dtype=NUMPY[self.dtype]).reshape(self.shape)


def row_blocks(ref: TensorRef, limit: int) -> Iterator[tuple[int, int]]:
    """Row ranges that cover the tensor in order, each of at most `limit` bytes (one row at least)."""
    if not ref.nbytes:
        return  # a header may claim any number of empty rows
    step = max(1, limit // max(1, ref.row_bytes))
    for start in range(0, ref.row_count, step):
        yield start, min(start + step, ref.row_count)


def as_float32(ref: TensorRef, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
    """Rows `start…stop` of a BF16, F16 or F32 tensor as float32 `[stop - start, …]`, exactly.

    Raises:
        BadCheckpoint: another dtype; widening it would not be exact or is not defined.
    """
    import numpy as np

    if ref.dtype not in ("BF16", "F16", "F32"):
        raise BadCheckpoint(f"{show(ref.name)} is {ref.dtype}; only BF16, F16 and F32 widen to float32 exactly")
    stop = ref.row_count if stop is None else stop
    bits = np.frombuffer(ref.rows(start, stop), dtype=FLOAT_BITS[ref.dtype].kind)
    shape = (stop - start, *ref.shape[1:]) if ref.shape else ()
    return widened(bits, ref.dtype).reshape(shape)


def element_count(ref: TensorRef) -> int:
    """Number of elements of the tensor."""
    return ref.nbytes * 8 // SIZES[ref.dtype]
