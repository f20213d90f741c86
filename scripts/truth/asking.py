"""Questions to an engine, each in a forked process: the engine is imported once and found as it was."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 300
"""Seconds after which a question is given up."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The engine raised; what it said, in one line."""

    error: str


class EngineDied(Exception):
    """The process that asked the engine ended without an answer."""


def ask(question: Callable[[], T]) -> T | Refusal:
    """Answer a question in a process of its own.

    Raises:
        EngineDied: it crashed or took too long; what it printed last is part of the message.
    """
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as log:
        pid = os.fork()
        if not pid:
            _answer(question, writer, log.fileno())
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(pid, 0)
        if not answer:
            log.seek(0)
            output = log.read().decode(errors="replace")[-2000:]
            raise EngineDied(f"it ended with {os.waitstatus_to_exitcode(status)}:\n{output}")
    outcome: T | Refusal = pickle.loads(answer)  # written by our own child
    return outcome


def _answer(question: Callable[[], T], writer: int, log: int) -> None:
    """In the child: what vLLM prints goes to the log, the answer into the pipe."""
    code = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.alarm(PATIENCE)
        answer: T | Refusal
        try:
            answer = question()
        except Exception as error:  # whatever its configs, loaders and kernels raise is the answer
            text = " ".join(str(error).split())
            answer = Refusal(f"{type(error).__name__}: {text}"[:500])
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(answer, pipe)
        code = 0
    finally:
        os._exit(code)
