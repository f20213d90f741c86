"""Linux calls that Python's `os` does not have, each with a way to do without."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_SYNC_FILE_RANGE_WRITE = 2


def exchange(left: Path, right: Path) -> bool:
    """Swap two names in one step (renameat2); False where kernel or file system cannot.

    Raises:
        OSError: it can and refuses.
    """
    call = getattr(_library(), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(right))


def reserve(descriptor: int, size: int) -> None:
    """Give an empty file its size, and its room on disk where the file system can promise that.

    Not os.posix_fallocate: where the file system cannot, glibc writes a byte into every block.

    Raises:
        OSError: there is no room, or a limit forbids the size.
    """
    call = getattr(_library(), "fallocate", None)
    while call is not None and call(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            break
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    os.ftruncate(descriptor, size)


def start_writeback(descriptor: int, offset: int, length: int) -> None:
    """Let the kernel begin to write a range to disk now, so that the fsync at the end finds little.

    Only a hint: whether it is understood changes the time and nothing else, so its result is not looked at.
    """
    call = getattr(_library(), "sync_file_range", None)
    if call is not None:
        call(descriptor, ctypes.c_int64(offset), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
