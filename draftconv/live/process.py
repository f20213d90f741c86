"""An engine as a process of ours: in a group of its own, its output in a file, gone with its children at the end."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from draftconv.checkpoint import show
from draftconv.errors import EngineError

logger = logging.getLogger(__name__)

GRACE = 30.0
"""Seconds that an engine has to end by itself."""
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""How a process is asked to end, beside Ctrl-C."""
_TAIL = 64_000
_FAULT = re.compile(r"\w+(?:Error|Exception): \S|\bValue error, ")
_ASIDE = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b")
_ELSEWHERE = "See root cause above"
"""What vLLM's API server ends with when its engine did not start."""


@contextmanager
def engine_process(
    argv: Sequence[str], *, log: Path, directory: Path, environment: Mapping[str, str], piped: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program and end it, and everything that it started, however this is left.

    SIGTERM, SIGQUIT and a closed terminal end this process as Ctrl-C does, so the program ends then too; SIGKILL
    leaves it behind.

    Args:
        log: gets its output and its errors. `directory`: where it runs.
        piped: stdin and stdout are pipes to us; only its errors go to the log.

    Raises:
        EngineError: there is no such program.
    """
    logger.info("starting %s in %s, output in %s", shlex.join(argv), show(directory), show(log))
    with log.open("ab") as lines, _terminable():
        try:
            process = subprocess.Popen(
                argv,
                cwd=directory,
                env=dict(environment),
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else lines,
                stderr=lines,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(
                f"{show(argv[0])} cannot be started: {error.strerror}",
                cure="name the Python of the environment that has the engine with --engine-python",
            ) from error
        try:
            yield process
        finally:
            _end(process)


def tail(log: Path) -> str:
    """The last line of a log that names a fault, else the last that says something, and where the rest is."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        return f"{show(log)} is empty"
    faults = [line for line in lines if _FAULT.search(line) and not _ASIDE.search(line) and _ELSEWHERE not in line]
    return f"{show((faults or lines)[-1])}; see {show(log)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, then make it; a second Ctrl-C makes it at once."""
    logger.info("ending process %d and what it started", process.pid)
    try:
        _signal(process, signal.SIGTERM)
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):  # only now: nobody can be blocked on the other end
            if pipe:
                with suppress(BrokenPipeError):  # what it never read
                    pipe.close()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):  # the group outlives its leader as long as a child lives
        os.killpg(process.pid, number)


@contextmanager
def _terminable() -> Iterator[None]:
    """What ends a process unwinds the stack, as Ctrl-C does, unless it is ignored (nohup) or handled already.

    Only the main thread may say so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
