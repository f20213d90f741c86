"""The exact command that serves a drafter on an engine."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from draftconv.checkpoint import open_checkpoint, show
from draftconv.checkpoint.checkpoint import hub_name, local_path
from draftconv.checkpoint.staging import write_error
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.targets import find_target
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.serving import ServeCommand, Start
from draftconv.errors import CheckFailed, EngineError, UsageError, WriteError
from draftconv.layouts.readings import Said, reading_line, reading_warnings
from draftconv.live.needs import Needs, needs_of

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


def serve_as(
    source: str | Path,
    engine: str,
    target: str,
    said: Said,
    *,
    drafts: int,
    tensor_parallel: int,
    alone: bool = False,
    python: Path | None = None,
    port: int | None = None,
    arguments: Sequence[str] = (),
) -> ServeCommand:
    """`serve`, where a command with several drafters has been told how to read this one."""
    spec = parse_engine(engine)
    goal = find_target(target, None)
    if goal is None:
        raise UsageError("serve needs --target", cure="give a directory, a Hub id or a known name")
    drafter = said.read(open_checkpoint(source), goal)
    out = f"{Path(drafter.checkpoint.name).name}-{spec.name}"
    told = ["--target", target, *said.words]
    convert = shlex.join(["draftconv", "convert", str(source), out, "--to", spec.name, *told])
    look = shlex.join(["draftconv", "inspect", str(source), "--for", engine, *told])
    here = f"{spec.name}:{spec.hardware}"
    again = f"quantize the 16-bit drafter with --for {here}, or write 16-bit weights: {convert} --dequantize"
    known = frozenset(problem.code for problem in check_drafter(drafter, goal).problems)
    check = partial(ENGINES[spec.name].check, drafter.checkpoint, drafter.facts, goal, known=known)
    verdict = check(spec=spec)
    if line := verdict.reason:
        if drafter.facts.quantization is None:
            cure = f"convert it first: {convert}"
        elif check(spec=replace(spec, hardware=None)).status == "loads":
            cure = again
        else:
            cure = f"see which conversion helps: {look}"
        raise CheckFailed(
            f"{ENGINES[spec.name].title} would not serve this drafter as it was trained ({verdict.status})",
            why=f"{line.rule.says}: {line.detail} [{line.rule.code}; {line.rule.source}]",
            cure=cure,
        )
    needs = Needs() if alone else needs_of(drafter, spec, tensor_parallel, arguments, again)
    directory, revision = _opened(source)
    asked = Start(directory, drafter.facts, goal, drafts, tensor_parallel, alone, revision)
    found = ENGINES[spec.name].command(asked, spec)
    argv = (*found.located(python), *needs.arguments, *(("--port", str(port)) if port else ()))
    read = (reading_line(drafter), *reading_warnings(drafter))
    return replace(found, argv=argv, notes=(*read, *found.notes, *needs.notes))


def _opened(source: str | Path) -> tuple[str, str | None]:
    """What a server opens: the directory, or the Hub id and its revision.

    Raises:
        UsageError: it is a weights file.
    """
    path = local_path(source)
    if path is None:
        return hub_name(str(source))
    if not path.is_dir():
        raise UsageError(
            f"{show(path)} is no directory",
            why="a server opens the directory of a drafter, with its config.json",
            cure=f"name {show(path.parent)}",
        )
    return str(source), None


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
