"""A directory that appears whole or not at all.

Work for `out` happens in the hidden sibling `.{out}.draftconv/`:

    lock   held (flock) while a run is alive; a killed run's lock is free at once
    new    the output being written; renamed to `out` at the very end
    old    with overwrite on a file system that cannot exchange names: what `out` was

One fixed name means that the next run for the same `out` finds what a killed one left.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from draftconv import limits
from draftconv.checkpoint.directories import nearest_parent, parents_made, sync_directory
from draftconv.checkpoint.files import LocalFile, exists, is_directory
from draftconv.checkpoint.hashing import sha256
from draftconv.checkpoint.syscalls import exchange
from draftconv.checkpoint.text import show, show_some
from draftconv.errors import BadCheckpoint, UsageError, WriteError

logger = logging.getLogger(__name__)

NAMED = 8
"""How many files a refusal names."""


class FileDigest(NamedTuple):
    """A file as it was written; None for what is not known of it."""

    size: int | None = None
    sha256: str | None = None

    @classmethod
    def of(cls, data: bytes) -> FileDigest:
        return cls(len(data), hashlib.sha256(data).hexdigest())


class OwnershipMark(NamedTuple):
    """The file that tells which directories are ours to overwrite.

    Attributes:
        wrote: what was written into a directory with this file in it, by name; None where it is none of ours.
    """

    file: str
    wrote: Callable[[Path], Mapping[str, FileDigest] | None]


@contextmanager
def staging(out: Path, *, overwrite: bool = False, mark: OwnershipMark | None = None) -> Iterator[Path]:
    """A fresh directory that becomes `out` when the block ends without an exception; directories above it are made.

    Args:
        overwrite: replace an `out` that has the mark and nothing in it that draftconv did not write. An empty one is
            always replaced.

    Raises:
        UsageError: `out` is not a directory name.
        WriteError: `out` exists and may not be replaced (also if it came about in the meantime), another
            run is writing it, or the file system refuses; it says whether something is left behind.
    """
    out = refuse_occupied(out, overwrite=overwrite, mark=mark)
    room = out.with_name(f".{out.name}.draftconv")
    published = False
    try:
        with parents_made(out), claimed(room):
            _clear(room, out)
            _refuse_target(out, mark, overwrite=overwrite)
            new = room / "new"
            try:
                new.mkdir()
                yield new
                sync_directory(new)
                _refuse_target(out, mark, overwrite=overwrite)  # hours may have passed
                _publish(new, out, room, overwrite=overwrite)
                published = True
            finally:
                with suppress(OSError):  # what is in the way of cleaning is no reason to fail; the next run does it
                    _clear(room, out)
            sync_directory(out.parent)
    except OSError as error:
        raise write_error(error, out, why=_left(room, published=published)) from error
    if os.path.lexists(room):
        logger.warning("%s could not be removed; the next run for %s does it", show(room), show(out.name))


def _left(room: Path, *, published: bool) -> str:
    """What a failed run leaves behind, in words."""
    if published:
        return "it stands there complete, but might not outlast a power cut"
    if not os.path.lexists(room):
        return "nothing was left behind"
    kept = "what stood there before" if (room / "old").is_dir() else "what was begun"
    return f"{kept} is in {show(room.name)} beside it, until the next run gives it back or removes it"


def refuse_occupied(out: Path, *, overwrite: bool = False, mark: OwnershipMark | None = None) -> Path:
    """Refuse what `staging` would refuse, before hours of work; what it returns is `out`, absolute.

    Raises:
        UsageError, WriteError: as `staging`.
    """
    out = Path(os.path.abspath(out))  # noqa: PTH100  (resolve() would follow a link at `out` itself)
    if not out.name:
        raise UsageError("the output directory has no name", cure="name a directory that does not exist yet")
    refuse_long_name(out, with_name=f".{out.name}.draftconv")
    try:
        _refuse_target(out, mark, overwrite=overwrite)
        above = nearest_parent(out)
    except OSError as error:
        raise write_error(error, out) from error
    if not os.access(above, os.W_OK | os.X_OK):
        mounted = os.statvfs(above).f_flag
        code = errno.EROFS if mounted & os.ST_RDONLY else errno.EACCES
        raise write_error(OSError(code, os.strerror(code)), out)
    return out


def refuse_long_name(out: Path, with_name: str = "") -> None:
    """Refuse a name that no file system takes, of the output or of a directory above it.

    Args:
        with_name: what stands beside `out` while it is made, under a longer name.

    Raises:
        UsageError: one of them is too long.
    """
    longest = max(len(os.fsencode(name)) for name in (with_name, out.name))
    added = longest - len(os.fsencode(out.name))
    needs = f" and needs {added} more while it is made" if added > 0 else ""
    what = f"the name of the output, {show(out.name)}, has {longest - added} bytes{needs}"
    limits.FILE_NAME.check(longest, what, error=UsageError)
    above = max(out.absolute().parts[:-1], key=lambda part: len(os.fsencode(part)), default="")
    what = f"the name of a directory above the output, {show(above)}, has {len(os.fsencode(above))} bytes"
    limits.FILE_NAME.check(len(os.fsencode(above)), what, error=UsageError)


def refuse_same(source: Path, out: Path) -> None:
    """Refuse an output that is the source, lies inside it or contains it.

    Raises:
        UsageError: they overlap, by name or through links.
    """
    source_directory = source.resolve()
    if not source_directory.is_dir():
        source_directory = source_directory.parent
    target = out.resolve()
    for path in (target, *target.parents):
        if exists(path) and path.samefile(source_directory):
            raise _overlap(source, out, "is" if path == target else "lies inside")
    for path in source_directory.parents:
        if exists(target) and path.samefile(target):
            raise _overlap(source, out, "contains")


def write_error(error: OSError, out: Path, *, why: str = "nothing was left behind") -> WriteError:
    """An operating system's refusal, in words and with a cure; `why` says what it leaves."""
    name = show(out.name)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            what = f"{name} could not be written: there is no room left on its file system"
            cure = "free some space or choose an output on another file system"
        case errno.EFBIG:
            what = f"{name} could not be written: a file would exceed the size limit"
            cure = "raise the limit (`ulimit -f`), or split the weights with a shard size"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            what = f"{name} could not be written: {error.strerror}"
            cure = "choose an output in a directory that you may write to"
        case _:
            what = f"{name} could not be written: {error.strerror or error}"
            cure = "check the file system, then start again"
    return WriteError(what, why=why, cure=cure)


def write_new(path: Path, data: bytes) -> None:
    """Write a single file, which appears whole or not at all and replaces nothing.

    Raises:
        FileExistsError: there is one. OSError: the file system refuses; nothing was left behind.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as made:
            made.write(data)
            made.flush()
            os.fsync(made.fileno())
        temporary.chmod(0o644)
        os.link(temporary, path)  # unlike a rename, it replaces nothing
    finally:
        temporary.unlink(missing_ok=True)


def occupied(out: Path) -> bool:
    """Whether a directory stands at `out`, which must then be looked into.

    Raises:
        WriteError: something else stands there, or where a directory above it would have to be made.
    """
    name = show(out.name)
    nearest_parent(out)
    if not os.path.lexists(out):
        return False
    if out.is_symlink() or not is_directory(out):
        raise WriteError(f"{name} exists and is not a directory", cure="choose another output name")
    return True


def _refuse_target(out: Path, mark: OwnershipMark | None, *, overwrite: bool) -> None:
    name = show(out.name)
    if not occupied(out):
        return
    empty = not any(out.iterdir())
    if not (overwrite or empty):
        raise _exists(out)
    if out.samefile(os.curdir):
        raise WriteError(
            f"{name} is the directory that you are in",
            why="a new directory is put in its place, and you would be left in one that is gone",
            cure="go out of it and give its name from there",
        )
    if empty:
        return
    written = _written_files(out, mark) if mark else None
    if written is None:
        raise WriteError(
            f"{name} was not written by draftconv: it holds no {mark.file if mark else 'record'} of ours",
            why="--overwrite replaces only directories that draftconv wrote",
            cure="choose another output name, or remove the directory yourself",
        )
    if foreign := _foreign_entries(out, written):
        raise WriteError(
            f"{name} holds what draftconv did not write, or what was changed since: {show_some(foreign, NAMED)}",
            why="--overwrite would delete it",
            cure="move it away, choose another output name, or remove the directory yourself",
        )


def _exists(out: Path) -> WriteError:
    return WriteError(
        f"{show(out.name)} exists already",
        why="its contents would be lost",
        cure="choose another output name, or pass --overwrite if draftconv wrote it",
    )


def _written_files(out: Path, mark: OwnershipMark) -> Mapping[str, FileDigest] | None:
    path = out / mark.file
    return mark.wrote(out) if path.is_file() and not path.is_symlink() else None


def _foreign_entries(out: Path, written: Mapping[str, FileDigest]) -> list[str]:
    """What of a directory is not a file that was written there, or not as it was written; directories with a slash."""
    foreign = []
    with os.scandir(out) as entries:
        for entry in entries:
            digest = written.get(entry.name)
            if entry.is_dir(follow_symlinks=False):
                foreign.append(f"{entry.name}/")
            elif digest is None or not entry.is_file(follow_symlinks=False) or not _is_as_written(Path(entry), digest):
                foreign.append(entry.name)
    return sorted(foreign)


def _is_as_written(path: Path, digest: FileDigest) -> bool:
    try:
        with LocalFile(path) as file:
            if digest.size not in (None, file.size):
                return False
            return digest.sha256 is None or sha256(file) == digest.sha256
    except BadCheckpoint:
        return False


@contextmanager
def claimed(room: Path) -> Iterator[Path]:
    """Own the working directory: made, locked, and removed again."""
    descriptor = _lock(room)
    try:
        yield room
    finally:
        # The next run may have moved in between the two calls: the room is its own now. What else is in the way
        # is no reason to fail: an empty room hinders nobody.
        with suppress(OSError):
            # unlinked while locked: whoever opened it meanwhile sees that it is gone and starts over
            (room / "lock").unlink()
            room.rmdir()
        os.close(descriptor)


def _lock(room: Path) -> int:
    while True:
        room.mkdir(mode=0o700, exist_ok=True)  # not tried again: nothing can be made in /proc, however often
        shared = room.parent.stat().st_mode & stat.S_ISVTX
        try:
            status = room.lstat()
        except FileNotFoundError:
            continue  # another run finished and removed the room between the two calls
        # in a directory like /tmp anyone may have put it there; elsewhere a server may map user ids
        if not stat.S_ISDIR(status.st_mode) or (shared and status.st_uid != os.geteuid()):
            raise WriteError(
                f"{show(room.name)} is in the way: it is not a directory of yours",
                why="draftconv works there before the output appears",
                cure="remove it or choose another output",
            )
        try:
            descriptor = os.open(room / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # as above
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same_file(descriptor, room / "lock"):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise WriteError(
                f"another run is writing {show(room.name[1:].removesuffix('.draftconv'))} right now",
                cure="wait for it, or choose another output",
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _clear(room: Path, out: Path) -> None:
    """Remove what is in the room; give back an `out` that a killed run had moved aside."""
    old = room / "old"
    if old.is_dir() and not os.path.lexists(out):
        old.rename(out)
    for path in (room / "new", old):
        if path.is_dir():
            shutil.rmtree(path)


def _publish(new: Path, out: Path, room: Path, *, overwrite: bool) -> None:
    try:
        new.rename(out)  # nothing stands there, or an empty directory, at which the kernel looks once more
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if not overwrite:
        raise _exists(out)
    if not exchange(new, out):
        out.rename(room / "old")
        new.rename(out)


def _overlap(source: Path, out: Path, relation: str) -> UsageError:
    return UsageError(
        f"the output {show(out.name or out)} {relation} the source {show(source.name or source)}",
        why="writing it would change what is being read",
        cure="choose an output outside the source directory",
    )
