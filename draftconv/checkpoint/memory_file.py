"""Bytes that were computed, looked at through the same interface as a file."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftconv.checkpoint.files import check_range


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """A `DataFile` over a bytes object."""

    name: str
    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        """See `DataFile.read`."""
        check_range(self, offset, length)
        return self.data[offset : offset + length]

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """See `DataFile.readinto`."""
        buffer[:] = self.read(offset, buffer.nbytes)
