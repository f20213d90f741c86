"""The exact command that serves a drafter on an engine."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from draftconv.checkpoint import show
from draftconv.checkpoint.staging import write_error
from draftconv.engines.serving import ServeCommand
from draftconv.errors import EngineError, WriteError
from draftconv.layouts.drafter_reader import DrafterReader
from draftconv.live.server_command import serve_as
from draftconv.options import (
    ACCEPT_DETECTED,
    AUX_CONVENTION,
    LAYOUT,
    NUM_SPECULATIVE_TOKENS,
    TENSOR_PARALLEL_SIZE,
    Place,
    option,
    python_only,
    takes,
)

logger = logging.getLogger(__name__)

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores for itself, and that a program in its place would ignore too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What a server is started with."""

    engine: str = option(..., "The engine to start.", flag="--for", metavar="ENGINE[@VERSION][:HARDWARE]")
    target: str = option(..., "The target: a directory, a Hub id or a known name.", metavar="TARGET")
    num_speculative_tokens: int = option(3, NUM_SPECULATIVE_TOKENS)
    tensor_parallel_size: int = option(1, TENSOR_PARALLEL_SIZE)
    engine_python: Place | None = option(
        None,
        "The Python of the engine's environment; without it programs come from the PATH.",
        metavar="PYTHON",
        file=True,
    )
    port: int | None = option(None, "Where it listens.  [default: the engine's]", least=1, most=65535)
    layout: str | None = option(None, LAYOUT)
    aux_convention: str | None = option(None, AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    alone: bool = python_only(False, "the target without the drafter, otherwise started alike")
    arguments: Sequence[str] = python_only((), "of the server that somebody else adds to the command")


@takes(ServeOptions)
def serve(source: Place, options: ServeOptions) -> ServeCommand:
    """Build the server command for a drafter that this engine reads rightly.

    Args:
        source: directory or Hub id; the server is given the same.

    Raises:
        Undecided: the drafter can be read in several ways.
        CheckFailed: the engine would refuse or mis-read it, or the hardware has no kernel for its weights.
        UsageError: unknown engine or target, a target known by its layer count only, a drafter that is a file, or
            `arguments` ask for float32 where quantized weights have no kernel for it.
    """
    return serve_as(
        source,
        options.engine,
        options.target,
        DrafterReader(options.layout, options.aux_convention, options.accept_detected),
        drafts=options.num_speculative_tokens,
        tensor_parallel=options.tensor_parallel_size,
        alone=options.alone,
        python=None if options.engine_python is None else Path(options.engine_python),
        port=options.port,
        arguments=options.arguments,
    )


def start(command: ServeCommand) -> NoReturn:
    """Become the server: its files are written into this directory, then this process is replaced.

    Raises:
        WriteError: a file is there with another content, or cannot be written. EngineError: there is no such program.
    """
    for name, text in command.files.items():
        _write(Path(name), text)
    logger.info("becoming %s", command.shell())
    environment = {**command.environment, **os.environ}
    ours = {number: signal.signal(number, signal.SIG_DFL) for number in IGNORED_BY_PYTHON}
    try:
        os.execvpe(command.argv[0], command.argv, environment)
    except OSError as error:
        for number, handler in ours.items():
            signal.signal(number, handler)
        raise EngineError(
            f"{show(command.argv[0])} cannot be started: {error.strerror}",
            cure="name the Python of the environment that has the engine with --engine-python",
        ) from error


def _write(path: Path, text: str) -> None:
    content = text.encode()
    try:
        if path.exists() and path.read_bytes() != content:
            raise WriteError(
                f"there is another {show(path.name)} in this directory",
                why="the server would be started with its settings, or they would be lost",
                cure="move it away, or run this in another directory",
            )
        path.write_bytes(content)
    except OSError as error:
        raise write_error(error, path) from error
