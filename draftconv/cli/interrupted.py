"""Ctrl-C in a long command: what was done is kept, and the same command goes on with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftconv.checkpoint.files import exists
from draftconv.checkpoint.text import safe


@contextmanager
def keeping(room: Path, what: str, mark: str = "") -> Iterator[None]:
    """Say on Ctrl-C that a directory keeps what was done, and exit with 130; where there is none, nothing is left.

    A command that runs out of memory keeps it too: the error has a note of it.

    Args:
        what: was done, such as `captured`. `mark`: the file in it that says that something was.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not exists(room / mark):
            raise
        print(f"Interrupted: {safe(room)} keeps what was {what}; the same command goes on.", file=sys.stderr)
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        if exists(room / mark):
            error.add_note(f"{room} keeps what was {what}; the same command goes on")
        raise
