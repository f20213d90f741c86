"""Random access to the bytes of a checkpoint, wherever they are."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from draftconv.checkpoint.text import show
from draftconv.errors import BadCheckpoint


def exists(path: str | Path) -> bool:
    """Whether something is there; not when the name is too long, where `Path.exists` raises."""
    return os.path.exists(path)  # noqa: PTH110


def is_directory(path: str | Path) -> bool:
    """As `exists`, of a directory."""
    return os.path.isdir(path)  # noqa: PTH112


class DataFile(Protocol):
    """A file of known size that can be read at any offset from several threads at once."""

    @property
    def name(self) -> str:
        """Base name, for messages."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; BadCheckpoint when the file does not have them."""

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`; BadCheckpoint when the file does not have that much."""


def check_range(file: DataFile, offset: int, length: int) -> None:
    """Refuse a range that leaves the file, before anything is allocated for it."""
    if offset < 0 or length < 0 or offset + length > file.size:
        raise BadCheckpoint(
            f"{show(file.name)} is too short: it has {file.size} bytes, {length} at {offset} were asked for",
            why="the file is truncated or its header lies",
            cure="download or copy it again and compare the sizes",
        )


class LocalFile:
    """A regular file, opened at the first read and closed with the object.

    Raises:
        BadCheckpoint: missing, unreadable, or not a regular file (a pipe would block for ever).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            raise BadCheckpoint(f"{show(self.name)} cannot be read: {_reason(error)}") from error
        if not stat.S_ISREG(status.st_mode):
            raise BadCheckpoint(f"{show(self.name)} is not a regular file")
        self.size = status.st_size
        self._state = _state(status)

    def fileno(self) -> int:
        """The open descriptor, valid until `close`."""
        with self._lock:
            if self._descriptor is None:
                try:
                    self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
                except OSError as error:
                    raise BadCheckpoint(f"{show(self.name)} cannot be opened: {_reason(error)}") from error
            return self._descriptor

    def read(self, offset: int, length: int) -> bytes:
        """See `DataFile.read`."""
        check_range(self, offset, length)
        descriptor = self.fileno()
        pieces: list[bytes] = []
        while length:
            try:
                piece = os.pread(descriptor, length, offset)
            except OSError as error:
                raise BadCheckpoint(f"{show(self.name)} cannot be read: {_reason(error)}") from error
            if not piece:
                raise shrunk(self)
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        # one pread gives it all unless it is over 2 GiB: no second copy in the usual case
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """See `DataFile.readinto`."""
        check_range(self, offset, buffer.nbytes)
        descriptor = self.fileno()
        while buffer.nbytes:
            try:
                count = os.preadv(descriptor, [buffer], offset)
            except OSError as error:
                raise BadCheckpoint(f"{show(self.name)} cannot be read: {_reason(error)}") from error
            if not count:
                raise shrunk(self)
            offset += count
            buffer = buffer[count:]

    def check_unchanged(self) -> None:
        """Refuse a file that was written to, or replaced, since this object was made.

        Raises:
            BadCheckpoint: it was.
        """
        if _state(os.fstat(self.fileno())) != self._state:
            raise BadCheckpoint(
                f"{show(self.name)} was changed while it was read",
                why="something is writing to the source, and what was made of it would be a mixture",
                cure="wait until the source is complete, then start again",
            )

    def close(self) -> None:
        """Close the descriptor; a later read opens it again."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # bound early: at the interpreter's end the module's names are gone
        descriptor: int | None = getattr(self, "_descriptor", None)
        if descriptor is not None:
            close(descriptor)

    def __repr__(self) -> str:
        return f"LocalFile({self.name!r}, {self.size} bytes)"


def shrunk(file: DataFile) -> BadCheckpoint:
    """The error for a file that ends earlier than it did when it was opened."""
    return BadCheckpoint(
        f"{show(file.name)} became shorter while it was read",
        why="something is writing to the source",
        cure="wait until the source is complete, then start again",
    )


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
