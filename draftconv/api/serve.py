"""The exact command that serves a drafter on an engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from draftconv.checkpoint import show
from draftconv.checkpoint.staging import write_error
from draftconv.engines.serving import ServeCommand
from draftconv.errors import EngineError, WriteError
from draftconv.layouts.readings import Said
from draftconv.live.serving import serve_as

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores for itself, and that a program in its place would ignore too."""


def serve(
    source: str | Path,
    engine: str,
    target: str,
    *,
    drafts: int = 3,
    tensor_parallel: int = 1,
    layout: str | None = None,
    aux_convention: str | None = None,
    accept_detected: bool = False,
    alone: bool = False,
    python: Path | None = None,
    port: int | None = None,
    arguments: Sequence[str] = (),
) -> ServeCommand:
    """Build the server command for a drafter that this engine reads rightly.

    Args:
        source: directory or Hub id; the server is given the same. `target`: see `find_target`.
        layout, aux_convention, accept_detected: how the drafter is to be read, as in `ConvertOptions`.
        drafts: tokens proposed per step (K). `tensor_parallel`: devices for the target.
        alone: the target without the drafter, otherwise started alike.
        python: of the engine's environment, whose programs are taken; None leaves them to the PATH.
        port: where it listens; None leaves that to the engine.
        arguments: of the server that somebody else adds to the command.

    Raises:
        Undecided: the drafter can be read in several ways.
        CheckFailed: the engine would refuse or mis-read it, or the hardware has no kernel for its weights.
        UsageError: unknown engine or target, a target known by its layer count only, a drafter that is a file, or
            `arguments` ask for float32 where quantized weights have no kernel for it.
    """
    said = Said(layout, aux_convention, accept_detected)
    return serve_as(
        source, engine, target, said,
        drafts=drafts, tensor_parallel=tensor_parallel, alone=alone, python=python, port=port, arguments=arguments,
    )  # fmt: skip


def start(command: ServeCommand) -> NoReturn:
    """Become the server: its files are written into this directory, then this process is replaced.

    Raises:
        WriteError: a file is there with another content, or cannot be written. EngineError: there is no such program.
    """
    for name, text in command.files.items():
        _write(Path(name), text)
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
