"""System calls of a forked child that fail on request, whoever makes them: Python, numpy, torch, any C library.

A seccomp filter in the child hands every call of the kinds in `KINDS` to this process before the kernel carries it
out (seccomp_unotify(2)), and this process answers: carry it out, give this error instead, or kill -9. No compiler, no
root and no ptrace are needed, only Linux 5.5 or newer on x86-64 or arm64. What is not a system call is not seen: bytes
of a file that is mapped into memory are read by the processor.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Errno = Literal["ENOSPC", "EIO", "EINTR"]
Fault = Literal["ENOSPC", "EIO", "EINTR", "kill"]

# kind → call → (number on x86-64, number on arm64 or None, where its file is: fd or path arguments)
FD, PATH, AT, AT2 = "fd", "path", "at", "at2"
"""A descriptor; a path; a directory's descriptor and a path; two descriptors and a path at the third place."""

KINDS: Mapping[str, Mapping[str, tuple[int, int | None, str]]] = {
    "open": {"open": (2, None, PATH), "openat": (257, 56, AT), "openat2": (437, 437, AT)},
    "read": {
        "read": (0, 63, FD), "pread64": (17, 67, FD), "readv": (19, 65, FD), "preadv": (295, 69, FD),
        "preadv2": (327, 286, FD),
    },
    "write": {
        "write": (1, 64, FD), "pwrite64": (18, 68, FD), "writev": (20, 66, FD), "pwritev": (296, 70, FD),
        "pwritev2": (328, 287, FD),
    },
    "copy_file_range": {"copy_file_range": (326, 285, FD)},
    "sendfile": {"sendfile": (40, 71, FD)},
    "truncate": {"ftruncate": (77, 46, FD), "fallocate": (285, 47, FD), "truncate": (76, 45, PATH)},
    "fsync": {"fsync": (74, 82, FD), "fdatasync": (75, 83, FD)},
    "mkdir": {"mkdir": (83, None, PATH), "mkdirat": (258, 34, AT)},
    "rename": {
        "rename": (82, None, PATH), "renameat": (264, 38, AT), "renameat2": (316, 276, AT), "link": (86, None, PATH),
        "linkat": (265, 37, AT),
    },
    "unlink": {"unlink": (87, None, PATH), "unlinkat": (263, 35, AT), "rmdir": (84, None, PATH)},
    "send": {"sendto": (44, 206, FD), "connect": (42, 203, FD)},
    "receive": {"recvfrom": (45, 207, FD)},
}  # fmt: skip
"""What may fail. `send` and `receive` count on network sockets, all others on files below the roots."""

NETWORK = frozenset({"send", "receive"})
ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""Machine → place in the rows of `KINDS`, AUDIT_ARCH, number of seccomp(2)."""

_NO_NEW_PRIVS, _SET_FILTER, _NEW_LISTENER = 38, 1, 1 << 3
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_AT_FDCWD = -100
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")


class Unavailable(Exception):
    """This machine cannot do it; the text says why."""


@dataclass(frozen=True, slots=True)
class Injection:
    """The `number`-th call (from 1) of a kind, and what becomes of it."""

    kind: str
    number: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was seen: its kind, its name, and the file below its root."""

    kind: str
    name: str
    file: str


@dataclass(frozen=True, slots=True)
class Ran:
    """A child's end.

    Attributes:
        code: exit code; negative is the signal that ended it; None where it ran past its limit.
        said: all that it wrote on stdout and stderr. `calls`: every call of `KINDS` on files below the roots, in order.
        hit: the call that was made to fail; None where there were not that many.
    """

    code: int | None
    said: str
    calls: tuple[Call, ...]
    hit: Call | None


def run_child(
    work: Callable[[], int], roots: Sequence[Path], injection: Injection | None = None, *, limit: float = 120.0
) -> Ran:
    """Run `work` in a forked child and let one of its system calls fail.

    Args:
        work: what the child does; returns its exit code. `roots`: only calls on what lies below them count.
        limit: seconds until the child is killed.

    Raises:
        Unavailable: no seccomp notifications on this machine.
    """
    calls = _numbered()
    with _captured() as said:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _be_child(work, theirs, said, sorted(calls))
        theirs.close()
        with ours:
            message, listeners, _, _ = socket.recv_fds(ours, 200, 1)
        if not listeners:
            os.waitpid(child, 0)
            raise Unavailable(message.decode() or "the child ended before it had a filter")
        watch = _Supervisor(child, listeners[0], [root.resolve() for root in roots], injection)
        try:
            in_time = watch.serve(calls, time.monotonic() + limit)
        finally:
            os.close(listeners[0])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        text = os.pread(said, 1 << 20, 0).decode(errors="replace")
    return Ran(code if in_time else None, text, tuple(watch.calls), watch.hit)


def _numbered() -> dict[int, tuple[str, str, str]]:
    """Number on this machine → kind, name, and where the file is."""
    column, _, _ = _architecture()
    found = {}
    for kind, calls in KINDS.items():
        for name, (*numbers, where) in calls.items():
            if isinstance(number := numbers[column], int):
                found[number] = (kind, name, str(where))
    return found


@contextmanager
def _captured() -> Iterator[int]:
    descriptor = os.memfd_create("said")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _architecture() -> tuple[int, int, int]:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        raise Unavailable(f"system calls are intercepted on Linux on {' or '.join(ARCHITECTURES)} only")
    return ARCHITECTURES[machine]


# ── in the child ───────────────────────────────────────────────────────────────────


def _be_child(work: Callable[[], int], supervisor: socket.socket, said: int, numbers: Sequence[int]) -> None:
    code = 99
    try:
        for stream in (1, 2):
            os.dup2(said, stream)
        # whoever runs this may have put something else in place of them
        sys.stdout, sys.stderr = (open(stream, "w", closefd=False) for stream in (1, 2))  # noqa: SIM115
        try:
            listener = _install(numbers)
        except Unavailable as error:
            supervisor.send(str(error).encode())
            os._exit(code)
        socket.send_fds(supervisor, [b"ready"], [listener])
        os.close(listener)
        supervisor.close()
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    except BaseException:  # the parent's stack must never unwind in the child
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _install(numbers: Sequence[int]) -> int:
    """Put the filter on this process; the descriptor on which its calls are told."""
    _, audit, seccomp = _architecture()
    count = len(numbers)

    def step(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    load, equal, give = 0x20, 0x15, 0x06
    program = [step(load, 0, 0, 4), step(equal, 0, count + 1, audit), step(load, 0, 0, 0)]
    program += [step(equal, count - index, 0, number) for index, number in enumerate(numbers)]
    program += [step(give, 0, 0, _ALLOW), step(give, 0, 0, _NOTIFY)]
    code = ctypes.create_string_buffer(b"".join(program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise Unavailable("this kernel or container allows no seccomp filter (no_new_privs)")
    listener: int = library.syscall(seccomp, _SET_FILTER, _NEW_LISTENER, head)
    if listener < 0:
        reason = os.strerror(ctypes.get_errno())
        raise Unavailable(f"this kernel or container allows no seccomp notifications: {reason}")
    return listener


# ── in the parent ──────────────────────────────────────────────────────────────────


@dataclass
class _Supervisor:
    child: int
    listener: int
    roots: Sequence[Path]
    injection: Injection | None
    calls: list[Call] = field(default_factory=list)
    hit: Call | None = None
    seen: int = 0

    def serve(self, calls: Mapping[int, tuple[str, str, str]], deadline: float) -> bool:
        """Answer until the child has ended; False where it had to be ended."""
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        in_time = True
        while True:
            left = deadline - time.monotonic()
            events = poll.poll(max(0, left) * 1000)
            if not events:
                os.kill(self.child, signal.SIGKILL)
                in_time, deadline = False, time.monotonic() + 10
            elif not events[0][1] & select.POLLIN:
                return in_time
            else:
                self._answer(calls)

    def _answer(self, calls: Mapping[int, tuple[str, str, str]]) -> None:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notification, True)
        except FileNotFoundError:
            return  # killed in the meantime
        ident, thread, _, number, _, _, *arguments = _NOTIFICATION.unpack(notification)
        kind, name, where = calls[number]
        fault: Fault | None = None
        file = self._file(thread, arguments, where, kind)
        if file is not None:
            self.calls.append(Call(kind, name, file))
            fault = self._fault(self.calls[-1])
        if fault == "kill":
            os.kill(self.child, signal.SIGKILL)
            return
        code = -getattr(errno, fault) if fault else 0
        try:
            fcntl.ioctl(self.listener, _SEND, _RESPONSE.pack(ident, 0, code, 0 if fault else _CONTINUE))
        except FileNotFoundError:
            return  # as above

    def _fault(self, call: Call) -> Fault | None:
        if self.injection is None or call.kind != self.injection.kind:
            return None
        self.seen += 1
        if self.seen != self.injection.number:
            return None
        self.hit = call
        return self.injection.fault

    def _file(self, thread: int, arguments: Sequence[int], where: str, kind: str) -> str | None:
        """What the call is about, below its root; None where that does not count."""
        try:
            path = _path(thread, arguments, where)
        except OSError:
            return None
        if kind in NETWORK:
            return "socket" if path.name.startswith("socket:") else None
        root = next((root for root in self.roots if root in path.parents), None)
        return None if root is None else str(path.relative_to(root))


def _path(thread: int, arguments: Sequence[int], where: str) -> Path:
    process = Path("/proc", str(thread))
    if where == FD:
        return (process / f"fd/{_signed(arguments[0])}").readlink()
    directory, pointer = (_AT_FDCWD, arguments[0]) if where == PATH else (_signed(arguments[0]), arguments[1])
    base = (process / ("cwd" if directory == _AT_FDCWD else f"fd/{directory}")).readlink()
    whole = base / _text(process, pointer)
    return whole.parent.resolve() / whole.name


def _signed(value: int) -> int:
    return ctypes.c_int32(value & 0xFFFFFFFF).value


def _text(process: Path, pointer: int) -> str:
    """A C string of the child, read page by page: the page behind its end need not be there."""
    found = b""
    descriptor = os.open(process / "mem", os.O_RDONLY)
    try:
        while b"\0" not in found and len(found) < 4096:
            found += os.pread(descriptor, 256 - (pointer + len(found)) % 256, pointer + len(found))
    finally:
        os.close(descriptor)
    return os.fsdecode(found.partition(b"\0")[0])
