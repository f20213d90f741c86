"""A server for one arm: started with the command of `draftconv serve`, waited for, and stopped."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftconv.engines.serving import LOOPBACK, located
from draftconv.errors import EngineError
from draftconv.live.process import engine_process, tail

logger = logging.getLogger(__name__)

LOG = "server.log"
_POLL = 0.5


@dataclass(frozen=True, slots=True)
class Launch:
    """A server that can be started.

    Attributes:
        argv: program and arguments, without a port. `files`: name → text, written beside the log first.
        health: what it answers with status 200 once it is ready. `patience`: seconds until it must.
        python: of the environment that has the engine; None takes its programs from the PATH.
        environment: variables that it needs; one that is set already is left as it is.
        notes: what a person should know before running it.
    """

    argv: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    health: str = "/health"
    patience: float = 1800.0
    python: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def located(self) -> tuple[str, ...]:
        """The command with its program taken from the engine's environment."""
        return located(self.argv, self.python)

    def on(self, port: int) -> Launch:
        """The same server on a port."""
        return replace(self, argv=(*self.argv, "--port", str(port)))


def free_port() -> int:
    """A port of the loopback interface that nobody listens on right now."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port: int = free.getsockname()[1]
    return port


def address(port: int) -> str:
    """Where a server on that port is asked."""
    return f"http://{LOOPBACK}:{port}"


@contextmanager
def launched(launch: Launch, port: int, directory: Path, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """A server that is ready, until this is left.

    Args:
        directory: gets the log (`LOG`) and the server's files, and is where it runs.

    Raises:
        EngineError: it cannot be started, ended by itself, or was not ready in time.
    """
    from draftconv.engines.http import Http

    directory.mkdir(parents=True, exist_ok=True)
    for name, text in launch.files.items():
        (directory / name).write_text(text, encoding="utf-8")
    log = directory / LOG
    argv = launch.on(port).located()
    variables = {**launch.environment, **environment}
    with engine_process(argv, log=log, directory=directory, environment=variables) as process:
        http = Http(address(port), timeout=5.0, attempts=1)
        deadline = time.monotonic() + launch.patience
        while not http.answers(launch.health):
            if (status := process.poll()) is not None:
                raise EngineError(
                    f"the server ended with status {status} before it was ready", why=tail(log), cure=_cure(argv)
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the server was not ready after {launch.patience:g} seconds",
                    why=tail(log),
                    cure="give it more time with --start-timeout",
                )
            time.sleep(_POLL)
        logger.info("the server at %s is ready", address(port))
        yield


def _cure(argv: Sequence[str]) -> str:
    import shlex

    return f"see what it says when you start it yourself: {shlex.join(argv)}"
