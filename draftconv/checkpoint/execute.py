"""Carry out a plan: bytes from the sources to a new directory, in bounded memory.

Copies stay inside the kernel (copy_file_range). Everything else is read, computed and
written in blocks at offsets that are known beforehand, so the output does not depend on
the number of threads or on the order in which they finish. Its hash follows the writing.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from draftconv.checkpoint.casts import FLOAT_BITS, cast
from draftconv.checkpoint.dtypes import SIZES
from draftconv.checkpoint.files import DataFile, LocalFile, shrunk
from draftconv.checkpoint.front import Front
from draftconv.checkpoint.hashing import sha256
from draftconv.checkpoint.headers import read_header
from draftconv.checkpoint.plan import (
    BLOCK,
    COPY_BUFFER,
    MAX_THREADS,
    Cast,
    Computation,
    Computed,
    Copy,
    Hashes,
    Literal,
    Placed,
    Plan,
    Rows,
    Shard,
)
from draftconv.checkpoint.progress import ByteCounter, Progress
from draftconv.checkpoint.staging import OwnershipMark, refuse_same, staging
from draftconv.checkpoint.syscalls import reserve, start_writeback
from draftconv.checkpoint.tensors import TensorRef
from draftconv.checkpoint.text import show, size
from draftconv.errors import Refused, WriteError

logger = logging.getLogger(__name__)

COPY_CHUNK = 32 * 1024 * 1024
"""Bytes per kernel copy: large enough to cost nothing, small enough for progress and Ctrl-C."""

# what copy_file_range says when these two files need an ordinary copy
_NO_KERNEL_COPY = frozenset({errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.ETXTBSY})


@dataclass(frozen=True, slots=True)
class _Move:
    """`length` bytes of `file` at `source` go to `target` as they are."""

    file: DataFile
    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class _Compute:
    """Elements `start…stop` of an output tensor, whose first byte is at `target`."""

    operation: Cast | Rows
    dtype: str
    target: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return (self.stop - self.start) * SIZES[self.dtype] // 8

    @property
    def casts(self) -> bool:
        return self.dtype in FLOAT_BITS and self.dtype != self.operation.ref.dtype


@dataclass(frozen=True, slots=True)
class _Yield:
    """Parts of one computation and the bytes that each takes in the file."""

    computation: Computation
    places: tuple[tuple[str, Placed], ...]

    @property
    def length(self) -> int:
        return sum(placed.stop - placed.start for _, placed in self.places)


_Job: TypeAlias = _Move | _Compute | _Yield


def execute(
    plan: Plan,
    out: Path,
    *,
    overwrite: bool = False,
    mark: OwnershipMark | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    deep: bool = False,
) -> None:
    """Write the plan to the directory `out`, which appears whole or not at all.

    Args:
        overwrite: replace an `out` in which there is only what `mark` says that draftconv wrote.
        progress: told the tensor bytes written so far, of `plan.total_bytes`.
        threads: workers; the output does not depend on it.
        deep: look at every float that is loaded (cast, permuted or literal; copies stay in the kernel).

    Raises:
        UsageError: the output is, contains or lies in a directory that is read from.
        WriteError: the output exists or cannot be written; nothing was left behind.
        BadCheckpoint: a source ended early, or was changed since it was opened.
        Refused: a cast would overflow; with `deep`, a NaN, an infinity or a tensor of nothing but zeros.
    """
    for source in sorted(plan.source_directories()):
        refuse_same(source, out)
    shards = plan.shards()
    tensors: dict[str, str] = {}
    files: dict[str, str] = {}
    tally = ByteCounter(progress)
    watch = _Watch() if deep else None
    workers = threads or min(MAX_THREADS, os.cpu_count() or 1)
    with staging(out, overwrite=overwrite, mark=mark) as directory:
        for shard in shards:
            _reserve(directory / shard.file_name, shard.size)
        for shard in shards:
            logger.info("writing %s: %d tensors, %s", shard.file_name, len(shard.tensors), size(shard.size))
            path = directory / shard.file_name
            files[shard.file_name] = _write_shard(path, shard, workers, tally, watch, tensors)
        for file in plan.source_files():
            file.check_unchanged()  # what was hashed and checked before is what was written
        small = plan.small_files(Hashes(tensors, files))
        for name, data in small.items():
            _write_small(directory / name, data)
        _check_written(directory, shards, small)
        logger.info("reopened and checked %d files; %s appears now", len(shards) + len(small), show(out))


def _reserve(path: Path, size: int) -> None:
    """Claim the room now: a disk that is too small fails here, not minutes later."""
    with _open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        reserve(descriptor, size)


@contextmanager
def _open_descriptor(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_shard(
    path: Path, shard: Shard, workers: int, tally: ByteCounter, watch: _Watch | None, hashes: dict[str, str]
) -> str:
    """Write one weights file; the SHA-256 of what then stands in it, read as soon as nothing is missing before it."""
    with (
        _open_descriptor(path, os.O_RDWR) as descriptor,
        LocalFile(path) as written,
        ThreadPoolExecutor(1, thread_name_prefix="draftconv-hash") as pool,
        Front(written.size) as front,  # the innermost: left before anyone waits for who reads behind it
    ):
        digest = pool.submit(sha256, written, after=front.after)
        worker = _Worker(descriptor, front, watch, hashes)
        worker.write(memoryview(shard.header), 0)
        for placed in shard.tensors:
            if isinstance(placed.tensor.operation, Literal):
                if watch is not None:
                    watch.look(placed.tensor.name, placed.tensor.dtype, placed.tensor.operation.data)
                worker.write(memoryview(placed.tensor.operation.data), placed.start)
                tally.add(placed.stop - placed.start)
        _run(list(_jobs(shard)), worker, workers, tally, digest)
        if watch is not None:
            watch.refuse_zeros(shard)
        front.refuse_gap()
        os.fsync(descriptor)
        return digest.result()


def _write_small(path: Path, data: bytes) -> None:
    with _open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        _write_all(descriptor, memoryview(data), 0)
        os.fsync(descriptor)


def _jobs(shard: Shard) -> Iterator[_Job]:
    """The shard's work; neighbouring copies that are neighbours in the source become one.

    Each kind is in the order of its first bytes in the file: each has its own pool, and the hash waits for the first
    byte that is missing.
    """
    pending: _Move | None = None
    yields: dict[int, list[tuple[str, Placed]]] = {}
    computations: dict[int, Computation] = {}
    for placed in shard.tensors:
        operation = placed.tensor.operation
        if isinstance(operation, Copy):
            ref = operation.ref
            if (
                pending is not None
                and pending.file is ref.file
                and pending.source + pending.length == ref.offset
                and pending.target + pending.length == placed.start
            ):
                pending = _Move(pending.file, pending.source, pending.target, pending.length + ref.nbytes)
                continue
            if pending is not None:
                yield from _chunks(pending)
            pending = _Move(ref.file, ref.offset, placed.start, ref.nbytes)
        elif isinstance(operation, Cast | Rows):
            yield from _blocks(operation, placed.tensor.dtype, placed.start, placed.stop)
        elif isinstance(operation, Computed):
            computations[id(operation.of)] = operation.of
            yields.setdefault(id(operation.of), []).append((operation.part, placed))
    for key, places in yields.items():
        yield _Yield(computations[key], tuple(places))
    if pending is not None:
        yield from _chunks(pending)


def _chunks(move: _Move) -> Iterator[_Move]:
    for done in range(0, move.length, COPY_CHUNK):
        size = min(COPY_CHUNK, move.length - done)
        yield _Move(move.file, move.source + done, move.target + done, size)


def _blocks(operation: Cast | Rows, dtype: str, start: int, stop: int) -> Iterator[_Compute]:
    # sub-byte rows end on whole bytes (PlannedTensor checks it), so bytes are their unit
    unit = max(8, SIZES[dtype])
    count = (stop - start) * 8 // unit
    step = BLOCK * 8 // max(unit, SIZES[operation.ref.dtype])
    kind = dtype if SIZES[dtype] >= 8 else "U8"
    for first in range(0, count, step):
        last = min(first + step, count)
        yield _Compute(operation, kind, start + first * unit // 8, first, last)


def segments(operation: Cast | Rows, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Source ranges `(offset in the file, length)` behind bytes `start…stop` of the permuted source."""
    ref = operation.ref
    if isinstance(operation, Cast):
        yield ref.offset + start, stop - start
        return
    row_bytes = ref.row_bytes
    begin = length = 0
    while start < stop:
        row, within = divmod(start, row_bytes)
        take = min(row_bytes - within, stop - start)
        offset = ref.offset + operation.order[row] * row_bytes + within
        if length and begin + length == offset:
            length += take
        else:
            if length:
                yield begin, length
            begin, length = offset, take
        start += take
    if length:
        yield begin, length


def _run(jobs: list[_Job], worker: _Worker, workers: int, tally: ByteCounter, digest: Future[str]) -> None:
    """Do the jobs on pools; the first error stops the rest and is raised. One of `digest` is noticed as a job ends."""
    # one thread copies: several would only queue for the lock of the file they write to
    copying = ThreadPoolExecutor(1, thread_name_prefix="draftconv-copy")
    computing = ThreadPoolExecutor(workers, thread_name_prefix="draftconv-compute")
    # one at a time: a computation is large and has threads of its own
    yielding = ThreadPoolExecutor(1, thread_name_prefix="draftconv-yield")
    pools = {_Move: copying, _Compute: computing, _Yield: yielding}
    try:
        for future in as_completed([pools[type(job)].submit(worker, job) for job in jobs]):
            tally.add(future.result())
            if digest.done():
                digest.result()
    finally:
        worker.stop.set()
        for pool in pools.values():
            pool.shutdown(wait=True, cancel_futures=True)


class _Watch:
    """Looks at the floats that pass through memory anyway: a few integer operations per block."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        """Operations (by identity) in whose source some value is not zero."""

    def look(self, name: str, dtype: str, data: bytes | memoryview) -> bool:
        """Whether any float of `data` is not zero; True for other dtypes.

        Raises:
            Refused: one of them is a NaN or an infinity.
        """
        if dtype not in FLOAT_BITS or not len(data):
            return True
        import numpy as np

        float_bits = FLOAT_BITS[dtype]
        bits = np.frombuffer(data, dtype=float_bits.kind)
        largest = int((bits & float_bits.magnitude).max())
        if largest >= float_bits.exponent:
            what = f"tensor {show(name)} holds NaN or infinity"
            raise _unhealthy_tensor(what, "one such value turns every logit into NaN")
        return largest > 0

    def refuse_zeros(self, shard: Shard) -> None:
        """Refuse computed tensors of which every value was zero."""
        for placed in shard.tensors:
            operation = placed.tensor.operation
            if isinstance(operation, Cast | Rows) and id(operation) not in self.alive and placed.start < placed.stop:
                raise _unhealthy_tensor(
                    f"tensor {show(operation.ref.name)} is all zeros", "it was never saved or never loaded"
                )


def _unhealthy_tensor(what: str, why: str) -> Refused:
    return Refused(what, why=why, cure="export the drafter again; `draftconv inspect --deep` lists all such tensors")


class _Worker:
    """One job at a time per thread, in a buffer that the thread keeps; `front` is told what then stands in the file."""

    def __init__(self, descriptor: int, front: Front, watch: _Watch | None, hashes: dict[str, str]) -> None:
        self.stop = threading.Event()
        """Set once nobody wants the rest."""
        self._descriptor = descriptor
        self._front = front
        self._watch = watch
        self._hashes = hashes
        self._local = threading.local()

    def __call__(self, job: _Job) -> int:
        if isinstance(job, _Yield):
            self._yield(job)
        elif isinstance(job, _Compute):
            self._compute(job)
        elif not isinstance(job.file, LocalFile) or not self._kernel_copy(job, job.file):
            self._plain_copy(job)
        return job.length

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at an offset of the file."""
        _write_all(self._descriptor, data, offset)
        self._wrote(offset, data.nbytes)

    def _wrote(self, start: int, length: int) -> None:
        start_writeback(self._descriptor, start, length)
        self._front.wrote(start, start + length)

    def _buffer(self, size: int) -> memoryview:
        buffer: bytearray | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._local.buffer = bytearray(size)
        return memoryview(buffer)[:size]

    def _kernel_copy(self, move: _Move, file: LocalFile) -> bool:
        """Copy without passing through this process; False, with nothing lost, where that is impossible."""
        if not hasattr(os, "copy_file_range"):
            return False
        done = 0
        while done < move.length and not self.stop.is_set():
            try:
                count = os.copy_file_range(
                    file.fileno(),
                    self._descriptor,
                    move.length - done,
                    move.source + done,
                    move.target + done,
                )
            except OSError as error:
                if error.errno in _NO_KERNEL_COPY and not done:
                    return False
                raise
            if not count:
                raise shrunk(file)
            done += count
        self._wrote(move.target, done)  # less than all of it if it was stopped
        return True

    def _plain_copy(self, move: _Move) -> None:
        buffer = self._buffer(min(COPY_BUFFER, move.length))
        done = 0
        while done < move.length and not self.stop.is_set():
            piece = buffer[: min(len(buffer), move.length - done)]
            move.file.readinto(move.source + done, piece)
            self.write(piece, move.target + done)
            done += len(piece)

    def _compute(self, job: _Compute) -> None:
        if self.stop.is_set():
            return
        import numpy as np

        ref: TensorRef = job.operation.ref
        width = SIZES[ref.dtype if job.casts else job.dtype] // 8
        source = self._buffer((job.stop - job.start) * width)
        filled = 0
        for offset, length in segments(job.operation, job.start * width, job.stop * width):
            ref.file.readinto(offset, source[filled : filled + length])
            filled += length
        if self._watch is not None and self._watch.look(ref.name, ref.dtype, source):
            self._watch.alive.add(id(job.operation))
        if not job.casts:
            self.write(source, job.target)
            return
        bits = np.frombuffer(source, dtype=FLOAT_BITS[ref.dtype].kind)
        result = cast(bits, ref.dtype, job.dtype, ref.name)
        self.write(result.data.cast("B"), job.target)

    def _yield(self, job: _Yield) -> None:
        if self.stop.is_set():
            return
        parts = job.computation.run()
        for part, placed in job.places:
            data = memoryview(parts[part]).cast("B")
            if data.nbytes != placed.stop - placed.start:
                raise ValueError(
                    f"{show(placed.tensor.name)}: {data.nbytes} bytes, {placed.stop - placed.start} planned"
                )
            if self._watch is not None:
                self._watch.look(placed.tensor.name, placed.tensor.dtype, data)
            self.write(data, placed.start)
            self._hashes[placed.tensor.name] = hashlib.sha256(data).hexdigest()


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data.nbytes:
        count = os.pwrite(descriptor, data, offset)
        offset += count
        data = data[count:]


def _check_written(directory: Path, shards: tuple[Shard, ...], small: dict[str, bytes]) -> None:
    """Reopen what was written: sizes, names, dtypes, shapes and byte ranges."""
    for shard in shards:
        with LocalFile(directory / shard.file_name) as file:
            header = read_header(file)
            written = [(ref.name, ref.dtype, ref.shape, ref.offset, ref.nbytes) for ref in header.tensors.values()]
        planned = [
            (placed.tensor.name, placed.tensor.dtype, placed.tensor.shape, placed.start, placed.tensor.nbytes)
            for placed in shard.tensors
        ]
        if sorted(written) != sorted(planned):
            raise _differs(shard.file_name)
    for name, data in small.items():
        with LocalFile(directory / name) as file:
            if file.read(0, file.size) != data:
                raise _differs(name)


def _differs(name: str) -> WriteError:
    return WriteError(
        f"{show(name)} was written but reads back differently",
        why="the file system or the disk is not to be trusted",
        cure="check the disk, then write to another one",
    )
