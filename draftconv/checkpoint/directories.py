"""Directories that an output stands in: made with it, as by `mkdir -p`, and gone again if it does not come about."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from draftconv.checkpoint.files import is_directory
from draftconv.checkpoint.text import show
from draftconv.errors import WriteError


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def nearest_parent(out: Path) -> Path:
    """The directory above `out`, or above what is missing of it, that is there.

    Raises:
        WriteError: something else stands where a directory would have to be made.
    """
    path = out.absolute().parent
    while not os.path.lexists(path):
        path = path.parent
    if not is_directory(path):
        raise WriteError(
            f"{show(out.name)} cannot stand in {show(path.name)}, which is not a directory",
            cure="choose another output name",
        )
    return path


@contextmanager
def parents_made(out: Path) -> Iterator[None]:
    """Make the directories above `out` that are missing; an exception in the block removes them again.

    One that somebody put something into meanwhile stays.

    Raises:
        WriteError: something else stands where a directory would have to be made.
        OSError: the file system refuses.
    """
    made: list[Path] = []
    try:
        above, nearest = out.absolute().parent, nearest_parent(out)
        names = above.relative_to(nearest).parts
        for path in (nearest.joinpath(*names[: count + 1]) for count in range(len(names))):
            with suppress(FileExistsError):  # another run was faster: it is that one's to remove
                path.mkdir()
                made.append(path)
                sync_directory(path.parent)
        yield
    except BaseException:
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir()
        raise
