"""Files of reports: written through to the disk, and read back within the limit."""

from __future__ import annotations

import os
from pathlib import Path

from draftconv import limits
from draftconv.checkpoint.files import LocalFile
from draftconv.errors import BadCheckpoint, BadReport


def write_file(path: Path, data: bytes) -> None:
    """A new file, synced.

    Raises:
        OSError: the file system refuses.
    """
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_file(path: Path) -> bytes:
    """The whole of a file.

    Raises:
        BadReport: it is missing, no regular file, or larger than a report may be.
    """
    try:
        with LocalFile(path) as file:
            limits.REPORT.check(file.size, f"{path.name} has {file.size} bytes")
            return file.read(0, file.size)
    except BadCheckpoint as error:
        raise BadReport(error.what, why=error.why, cure=error.cure or "name a directory that --report wrote") from error
