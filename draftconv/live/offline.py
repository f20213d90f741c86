"""An engine without a server: one process per arm, in the Python of the engine's environment, asked over its pipes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from subprocess import Popen
from threading import Thread
from typing import IO

from draftconv.checkpoint import show
from draftconv.checkpoint.text import parse_object
from draftconv.drafter.config import Config
from draftconv.engines.client import RequestSettings, ServerInfo, refuse_depth, refuse_length
from draftconv.engines.live import Offline
from draftconv.engines.request_output import RequestOutput, counted, explained
from draftconv.errors import BadCheckpoint, EngineError
from draftconv.live.launch import LOG
from draftconv.live.process import engine_process, tail
from draftconv.reference.sampling import Sampling

PROBE = 16
"""Tokens of the request that shows whether an engine drafts and counts."""


@dataclass(frozen=True, slots=True)
class OfflineEngine:
    """An engine in a process of ours; see `client.Client`. Requests run one after another.

    Attributes:
        title: of the engine. `how`: it is asked.
        asking: `timeout` is for a whole answer here.
        patience: seconds until the engine is ready.
    """

    title: str
    how: Offline
    process: Popen[bytes]
    lines: SimpleQueue[bytes]
    asking: RequestSettings
    target: str
    drafter: str
    log: Path
    patience: float

    def served(self, prompt: Sequence[int]) -> ServerInfo:
        """See `client.Client`."""
        ready = self._line(self.patience)
        self._ask(prompt, self.asking.probe(PROBE))
        return ServerInfo(
            target=self.target,
            version=ready.text("version") or "of unknown version",
            counting=self.how.counting,
            alone=True,
            room=ready.integer("room"),
            drafter=self.drafter,
        )

    def ask(self, prompt: Sequence[int], length: int | None = None) -> RequestOutput:
        """See `client.Client`."""
        return self._ask(prompt, self.asking.of_length(length))

    def _ask(self, prompt: Sequence[int], asking: RequestSettings) -> RequestOutput:
        request = {
            "prompt": list(prompt),
            "length": asking.length,
            "ignore_eos": asking.ignore_eos,
            "sampling": _drawn(asking.sampling, prompt),
        }
        try:
            _pipe(self.process.stdin).write(json.dumps(request).encode() + b"\n")
            _pipe(self.process.stdin).flush()
        except OSError as error:
            raise EngineError(f"{self.title} has ended", why=tail(self.log)) from error
        reply = self._line(self.asking.timeout)
        if fault := reply.text("fault"):
            raise EngineError(f"{self.title} failed: {show(fault)}", why=tail(self.log))
        try:
            tokens = reply.integers("tokens")
            if tokens is None:
                raise BadCheckpoint("an answer has no tokens")
            refuse_length(tokens, asking)
            refuse_depth(self.title, reply.integer("depth"), self.asking.depth)
            counts = counted(
                reply.integers("histogram") or (),
                reply.integer("steps") or 0,
                reply.integer("accepted") or 0,
                self.asking.depth,
            )
        except BadCheckpoint as error:
            raise EngineError(
                f"{self.title} does not answer as {self.how.version} does: {error.what}",
                cure=f"take {self.title} {self.how.version} or later",
            ) from error
        return explained(tokens, counts)

    def _line(self, patience: float) -> Config:
        try:
            line = self.lines.get(timeout=patience)
        except Empty as error:
            message = f"{self.title} did not answer within {patience:g} seconds"
            raise EngineError(message, why=tail(self.log)) from error
        if not line:
            raise EngineError(f"{self.title} ended before it answered", why=tail(self.log))
        try:
            return Config(parse_object(line, "the engine's line"), "the engine's line")
        except BadCheckpoint as error:
            raise EngineError(error.what, why=tail(self.log)) from error


@contextmanager
def offline(
    title: str,
    how: Offline,
    argv: Sequence[str],
    asking: RequestSettings,
    directory: Path,
    *,
    target: str,
    drafter: str,
    patience: float,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[OfflineEngine]:
    """An engine with a target and a drafter, until this is left.

    Args:
        argv: as `started` has it. `directory`: gets the log.

    Raises:
        EngineError: there is no such Python.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / LOG
    with engine_process(argv, log=log, directory=directory, environment=environment, piped=True) as process:
        lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=_listen, args=(_pipe(process.stdout), lines), daemon=True).start()
        yield OfflineEngine(title, how, process, lines, asking, target, drafter, log, patience)


def started(how: Offline, server: Sequence[str], python: str, *, ignore_eos: bool) -> tuple[str, ...]:
    """What starts an engine without a server.

    Args:
        server: the command that would start one. `python`: has the engine; draftconv need not be there.
        ignore_eos: every text is written to its full length.
    """
    return (python, str(how.worker), *how.arguments(server, ignore_eos))


def _listen(pipe: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    """Every line, then an empty one."""
    try:
        for line in pipe:
            lines.put(line)
    except ValueError:
        pass  # closed by us
    lines.put(b"")


def _drawn(sampling: Sampling | None, prompt: Sequence[int]) -> dict[str, float] | None:
    """How a request's text is drawn, as `Offline.worker` reads it."""
    if sampling is None:
        return None
    drawn = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
    return {**drawn, "seed": sampling.seed_of(prompt)}


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise EngineError("the engine's process has no pipe")
    return pipe
