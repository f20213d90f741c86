"""The exact command that serves a drafter on an engine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from draftconv.api.hints import hints
from draftconv.checkpoint import open_checkpoint, show
from draftconv.checkpoint.staging import write_error
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Mla
from draftconv.drafter.targets import find_target
from draftconv.engines import ENGINES, EngineSpec, parse_engine
from draftconv.engines.dtypes import asks_float32, float32_stop
from draftconv.engines.kernels import stored_kernel
from draftconv.engines.serving import ServeCommand, Start
from draftconv.errors import CheckFailed, EngineError, UsageError, WriteError
from draftconv.layouts.reading import read_drafter


def serve(
    source: str | Path,
    engine: str,
    target: str,
    *,
    drafts: int = 3,
    tensor_parallel: int = 1,
    layout: str | None = None,
    aux_convention: str | None = None,
    alone: bool = False,
    python: Path | None = None,
    port: int | None = None,
    arguments: Sequence[str] = (),
) -> ServeCommand:
    """Build the server command for a drafter that this engine reads rightly.

    Args:
        source: directory or Hub id; the server is given the same. `target`: see `find_target`.
        drafts: tokens proposed per step (K). `tensor_parallel`: devices for the target.
        alone: the target without the drafter, otherwise started alike.
        python: of the engine's environment, whose programs are taken; None leaves them to the PATH.
        port: where it listens; None leaves that to the engine.
        arguments: of the server that somebody else adds to the command.

    Raises:
        CheckFailed: the engine would refuse or mis-read it.
        UsageError: unknown engine or target, a target known by its layer count only, or `arguments` ask for
            float32 where quantized weights have no kernel for it.
    """
    spec = parse_engine(engine)
    goal = find_target(target, None)
    if goal is None:
        raise UsageError("serve needs --target", cure="give a directory, a Hub id or a known name")
    drafter = read_drafter(open_checkpoint(source), hints(layout, aux_convention, goal))
    known = frozenset(problem.code for problem in check_drafter(drafter, goal).problems)
    verdict = ENGINES[spec.name].check(drafter.checkpoint, drafter.facts, goal, spec, known)
    if line := verdict.reason:
        out = f"{Path(drafter.checkpoint.name).name}-{spec.name}"
        remedy = ["draftconv", "convert", str(source), out, "--to", spec.name, "--target", target]
        raise CheckFailed(
            f"{ENGINES[spec.name].title} would not serve this drafter as it was trained ({verdict.status})",
            why=f"{line.rule.says}: {line.detail} [{line.rule.code}; {line.rule.source}]",
            cure=f"convert it first: {shlex.join(remedy)}",
        )
    asked = Start(str(source), drafter.facts, goal, drafts, tensor_parallel, alone)
    found = ENGINES[spec.name].command(asked, spec)
    argv = (*found.located(python), *(("--port", str(port)) if port else ()))
    return replace(found, argv=argv, notes=(*found.notes, *(() if alone else _arithmetic(drafter, spec, arguments))))


def start(command: ServeCommand) -> NoReturn:
    """Become the server: its files are written into this directory, then this process is replaced.

    Raises:
        WriteError: a file is there with another content, or cannot be written. EngineError: there is no such program.
    """
    for name, text in command.files.items():
        _write(Path(name), text)
    environment = {**command.environment, **os.environ}
    try:
        os.execvpe(command.argv[0], command.argv, environment)
    except OSError as error:
        raise EngineError(
            f"{show(command.argv[0])} cannot be started: {error.strerror}",
            cure="name the Python of the environment that has the engine with --engine-python",
        ) from error


def _write(path: Path, text: str) -> None:
    try:
        if path.exists() and path.read_text() != text:
            raise WriteError(
                f"there is another {show(path.name)} in this directory",
                why="the server would be started with its settings, or they would be lost",
                cure="move it away, or run this in another directory",
            )
        path.write_text(text)
    except OSError as error:
        raise write_error(error, path) from error


def _arithmetic(drafter: Drafter, spec: EngineSpec, arguments: Sequence[str]) -> tuple[str, ...]:
    """What is multiplied on this hardware where the drafter is quantized, and what changes it.

    Raises:
        UsageError: the arguments ask for float32, in which it is not.
    """
    if drafter.facts.quantization is None:
        return ()
    from draftconv.quantization.reading import find_stored

    stored = find_stored(drafter)
    declared = stored.declared
    mla = isinstance(drafter.facts.attention, Mla)
    kernel = stored_kernel(spec, stored.format.id, declared.grid, declared.per, declared.inputs, mla=mla)
    notes = (f"the drafter's quantized weights: {kernel.executed}", *kernel.notes) if kernel else ()
    stop = float32_stop(spec, stored.format.id)
    if stop is not None and asks_float32(arguments):
        raise UsageError(
            f"{ENGINES[spec.name].title} does not compute in float32 beside {stored.format.title} weights",
            why=f"{stop.says} [{stop.evidence}: {stop.source}]",
            cure="leave out --dtype float32, or compare the dequantized drafter: `draftconv convert --dequantize`",
        )
    return (*notes, f"not with --dtype float32: {stop.says}") if stop else notes
