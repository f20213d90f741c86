"""The exact command that serves a drafter on an engine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from draftconv.api.hints import hints
from draftconv.checkpoint import open_checkpoint, show
from draftconv.checkpoint.checkpoint import hub_name, local_path
from draftconv.checkpoint.staging import write_error
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Mla
from draftconv.drafter.targets import find_target
from draftconv.engines import ENGINES, EngineSpec, parse_engine
from draftconv.engines.kernels import Deployment, stored_kernel
from draftconv.engines.serving import ServeCommand, Start
from draftconv.engines.shapes import Fault, shape_faults, uneven
from draftconv.errors import CheckFailed, EngineError, Refused, UsageError, WriteError
from draftconv.layouts.reading import read_drafter
from draftconv.quantization.scheme import GRIDS, Scheme, WeightScheme

if TYPE_CHECKING:
    from draftconv.quantization.formats.base import Declared

GROUP = 128
"""Inputs under one scale, where the file does not say and its kernels take this."""


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
) -> ServeCommand:
    """Build the server command for a drafter that this engine reads rightly.

    Args:
        source: directory or Hub id; the server is given the same. `target`: see `find_target`.
        drafts: tokens proposed per step (K). `tensor_parallel`: devices for the target.
        alone: the target without the drafter, otherwise started alike.
        python: of the engine's environment, whose programs are taken; None leaves them to the PATH.
        port: where it listens; None leaves that to the engine.

    Raises:
        CheckFailed: the engine would refuse or mis-read it, or the hardware has no kernel for its weights.
        UsageError: unknown engine or target, a target known by its layer count only, or a drafter that is a file.
    """
    spec = parse_engine(engine)
    goal = find_target(target, None)
    if goal is None:
        raise UsageError("serve needs --target", cure="give a directory, a Hub id or a known name")
    drafter = read_drafter(open_checkpoint(source), hints(layout, aux_convention, goal))
    out = f"{Path(drafter.checkpoint.name).name}-{spec.name}"
    convert = shlex.join(["draftconv", "convert", str(source), out, "--to", spec.name, "--target", target])
    look = shlex.join(["draftconv", "inspect", str(source), "--for", engine, "--target", target])
    here = f"{spec.name}:{spec.hardware}"
    again = f"quantize the 16-bit drafter with --for {here}, or write 16-bit weights: {convert} --dequantize"
    known = frozenset(problem.code for problem in check_drafter(drafter, goal).problems)
    check = partial(ENGINES[spec.name].check, drafter.checkpoint, drafter.facts, goal, known=known)
    verdict = check(spec=spec)
    if line := verdict.reason:
        quantized = drafter.facts.quantization is not None
        elsewhere = quantized and check(spec=replace(spec, hardware=None)).status == "loads"
        raise CheckFailed(
            f"{ENGINES[spec.name].title} would not serve this drafter as it was trained ({verdict.status})",
            why=f"{line.rule.says}: {line.detail} [{line.rule.code}; {line.rule.source}]",
            cure=again
            if elsewhere
            else f"see which conversion helps: {look}"
            if quantized
            else f"convert it first: {convert}",
        )
    notes, arguments = _runs(drafter, spec, tensor_parallel, again)
    directory, revision = _opened(source)
    asked = Start(directory, drafter.facts, goal, drafts, tensor_parallel, alone, revision)
    found = ENGINES[spec.name].command(asked, spec)
    argv = (*found.located(python), *arguments, *(("--port", str(port)) if port else ()))
    return replace(found, argv=argv, notes=(*found.notes, *notes))


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


def _runs(drafter: Drafter, spec: EngineSpec, tensor_parallel: int, remedy: str) -> tuple[Sequence[str], Sequence[str]]:
    """What is multiplied where the drafter is quantized, for the notes, and arguments that it needs.

    Args:
        remedy: the cure where the hardware has nothing that multiplies it.

    Raises:
        CheckFailed: the hardware has no kernel for its weights.
    """
    facts = drafter.facts
    if facts.quantization is None or spec.hardware is None:
        return _sizes(uneven(spec, facts, tensor_parallel)), ()
    from draftconv.quantization.reading import find_stored

    try:
        stored = find_stored(drafter)
    except Refused as unread:
        return (f"whether {spec.hardware} has a kernel for the drafter's weights was not looked at: {unread.what}",), ()
    scheme = _scheme(stored.declared)
    mla = isinstance(facts.attention, Mla)
    try:
        kernel = stored_kernel(spec, stored.format.id, stored.declared.style, scheme, mla=mla)
    except Refused as error:
        raise CheckFailed(error.what, why=error.why, cure=remedy) from error
    form = Deployment(stored.format.id, kernel.style, scheme, kernel.executed, kernel.source, kernel.evidence)
    sizes = _sizes(shape_faults(spec, form, facts, stored.modules, tensor_parallel))
    return (f"the drafter's quantized weights: {kernel.executed}", *kernel.notes, *sizes), kernel.arguments


def _sizes(faults: Iterable[Fault]) -> tuple[str, ...]:
    """Sizes that kernels or ranks do not take, in words. The target's devices are the user's choice: no refusal."""
    return tuple(
        f"{fault.module}: {fault.says}" + ("; the server does not start so" if fault.refused else "")
        for fault in faults
    )


def _scheme(declared: Declared) -> Scheme:
    """What the weights are; the rule that found their scales is not told, and nothing here depends on it."""
    grid = GRIDS[declared.grid]
    per = declared.per or ("group" if "group" in grid.per else "channel")
    group = declared.group or grid.group or GROUP if per == "group" else None
    scales = "weight" if "weight" in grid.scales else grid.scales[0]
    return Scheme(WeightScheme(declared.grid, per, grid.rules[0], scales, group), declared.inputs)
