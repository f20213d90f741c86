"""stdout and stderr as a program is given them: on a full disk, closed, or with nobody at the other end.

Python keeps text that could not be written and tries again when it ends, which makes two tracebacks and exit code
120 of a full disk. A stream of this module takes everything, and tells whether something of it is lost.
"""

from __future__ import annotations

import os
import select
import sys
from io import FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Standard(FileIO):
    """A standard stream that takes everything; after a failure nothing more is written.

    Attributes:
        fault: why something is lost. None where nothing is, or where the reader has gone (head, less) and wants no
            more.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.fault: OSError | None = None
        self._over = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of it, however often the file takes a part only, or none at the moment."""
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        while remaining and not self._over:
            try:
                written: int | None = super().write(remaining)
            except BrokenPipeError:
                self._over = True
            except OSError as error:
                self.fault, self._over = error, True
            else:
                if written is None:  # a full pipe that does not block
                    select.select((), (self,), ())
                remaining = remaining[written or 0 :]
        return size


def guard() -> None:
    """Let stdout and stderr take everything.

    One that is closed leads to nowhere from now on, and so does a closed stdin: the next file to be opened would
    have its number, and get what a library or another program prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number, which is this one
    sys.stdout, sys.stderr = _guarded(1, sys.stdout), _guarded(2, sys.stderr)


def _guarded(number: int, stream: TextIO | None) -> TextIO:
    """The same stream, which escapes what its encoding lacks."""
    raw, errors = Standard(number), "backslashreplace"
    if not isinstance(stream, TextIOWrapper):  # Python has none for one that is closed
        return TextIOWrapper(raw, "utf-8", errors)
    return TextIOWrapper(
        raw, stream.encoding, errors, line_buffering=stream.line_buffering, write_through=stream.write_through
    )


def lost() -> OSError | None:
    """Why some of what stdout was given did not get there; None where it did, or where nobody wants it."""
    sys.stdout.flush()
    raw = getattr(sys.stdout, "buffer", None)
    return raw.fault if isinstance(raw, Standard) else None
