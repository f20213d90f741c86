"""Content hashes of files and tensors, streamed."""

from __future__ import annotations

import hashlib

from draftconv.checkpoint.files import DataFile
from draftconv.checkpoint.progress import Progress
from draftconv.checkpoint.tensors import TensorRef, row_blocks

BLOCK = 4 * 1024 * 1024


def sha256(file: DataFile, progress: Progress | None = None) -> str:
    """SHA-256 of the whole file in hex; `progress` is told the bytes read so far, of `file.size`."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(BLOCK, file.size)))
    done = 0
    while done < file.size:
        piece = buffer[: min(len(buffer), file.size - done)]
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
