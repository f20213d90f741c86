"""Content hashes of files and tensors, streamed; and what a listing says of them, compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from draftconv.checkpoint.files import DataFile, LocalFile
from draftconv.checkpoint.progress import Progress
from draftconv.checkpoint.tensors import TensorRef, row_blocks
from draftconv.checkpoint.text import show
from draftconv.errors import BadCheckpoint

if TYPE_CHECKING:
    from hashlib import _Hash

BLOCK = 4 * 1024 * 1024


def sha256(file: DataFile, progress: Progress | None = None, after: Callable[[int], int] | None = None) -> str:
    """SHA-256 of the whole file in hex.

    Args:
        progress: told the bytes read so far, of `file.size`.
        after: of a file that is still being written, asked how far it may be read, beyond the bytes read so far.
    """
    return _digest(file, hashlib.sha256(), progress, after)


def blob_id(file: DataFile) -> str:
    """Git's id of the whole file in hex: SHA-1 over its size and contents."""
    return _digest(file, hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False))


def _digest(
    file: DataFile,
    digest: _Hash,
    progress: Progress | None = None,
    after: Callable[[int], int] | None = None,
) -> str:
    buffer = memoryview(bytearray(min(BLOCK, file.size)))
    done = 0
    while done < file.size:
        stop = file.size if after is None else after(done)
        piece = buffer[: min(len(buffer), stop - done)]
        file.readinto(done, piece)
        digest.update(piece)
        done += len(piece)
        if progress is not None:
            progress(done)
    return digest.hexdigest()


def tensor_hash(ref: TensorRef) -> str:
    """SHA-256 of a tensor's bytes in hex, read in blocks."""
    digest = hashlib.sha256()
    for start, stop in row_blocks(ref, BLOCK):
        digest.update(ref.rows(start, stop))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class ListedHash:
    """What a repository's listing says of a file's contents.

    Attributes:
        sha256: of a file that LFS or Xet holds. `blob`: git's id of any other file, see `blob_id`.
    """

    sha256: str | None
    blob: str | None

    def check(self, file: DataFile, repo: str) -> str:
        """SHA-256 of what was read of `file`, whole.

        Raises:
            BadCheckpoint: it is not what is listed, or nothing is.
        """
        digest = sha256(file)
        listed: str | None
        if self.sha256 is not None:
            kind, listed, found = "SHA-256", self.sha256, digest
        else:
            kind, listed, found = "git blob id", self.blob, blob_id(file)
        if listed is None:
            raise BadCheckpoint(
                f"{show(repo)} lists no hash of {show(file.name)}",
                why="nobody could tell whether what arrives is what was published",
                cure="download the repository, look at it, and pass the directory",
            )
        if found != listed:
            raise BadCheckpoint(
                f"{show(file.name)} is not what {show(repo)} lists: its {kind} is {found}, listed is {listed}",
                why="the download was damaged or changed since, or the server sends other bytes than it lists",
                cure=_fresh(file),
            )
        return digest


def _fresh(file: DataFile) -> str:
    """How to have a file sent again."""
    if not isinstance(file, LocalFile):
        return "try again; where that does not help, do not use what this server sends"
    # the name in the cache is a link, and another download would only link to the same bytes again
    kept = os.path.realpath(file.path)
    return f"remove it from the cache and start again:  rm {quote(kept)}"


def hash_files(
    names: Iterable[str], open_file: Callable[[str], DataFile], digest: Callable[[str, DataFile], str]
) -> dict[str, str]:
    """`digest(name, file)` of every file by name, several at a time; the first error ends it."""
    names = list(names)
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="draftconv-hash") as pool:
        try:
            return dict(zip(names, pool.map(lambda name: digest(name, open_file(name)), names), strict=True))
        finally:
            pool.shutdown(cancel_futures=True)
