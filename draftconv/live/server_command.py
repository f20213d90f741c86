"""The command that starts a server with a drafter that it reads rightly."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from draftconv.checkpoint import open_checkpoint, show
from draftconv.checkpoint.checkpoint import hub_name, local_path
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import find_target
from draftconv.engines import ENGINES, EngineSpec, parse_engine
from draftconv.engines.draft_methods import draft_method, refuse_reduced
from draftconv.engines.server_requirements import start_command
from draftconv.engines.serving import ServeCommand, ServeRequest
from draftconv.engines.target_stops import refuse_target
from draftconv.errors import CheckFailed, UsageError
from draftconv.layouts.drafter_reader import DrafterReader, reading_line, reading_warnings


def serve_as(
    source: str | Path,
    engine: str,
    target: str,
    reader: DrafterReader,
    *,
    drafts: int,
    tensor_parallel: int,
    alone: bool = False,
    python: Path | None = None,
    arguments: Sequence[str] = (),
) -> ServeCommand:
    """`serve`, where a command with several drafters has been told how to read this one."""
    spec = parse_engine(engine)
    goal = find_target(target, None)
    if goal is None:
        raise UsageError("serve needs --target", cure="give a directory, a Hub id or a known name")
    refuse_target(spec, goal)
    drafter = reader.read(open_checkpoint(source), goal)
    out = f"{Path(drafter.checkpoint.name).name}-{spec.name}"
    flags = ["--target", target, *reader.arguments]
    convert = shlex.join(["draftconv", "convert", str(source), out, "--to", ENGINES[spec.name].layout, *flags])
    look = shlex.join(["draftconv", "inspect", str(source), "--for", engine, *flags])
    engine_spec = f"{spec.name}:{spec.hardware}"
    again = f"quantize the 16-bit drafter with --for {engine_spec}, or write 16-bit weights: {convert} --dequantize"
    problems = check_drafter(drafter, goal).problems
    known = frozenset(problem.code for problem in problems)
    check = partial(ENGINES[spec.name].check, drafter.checkpoint, drafter.facts, goal, known=known)
    verdict = check(spec=spec)
    if line := verdict.reason:
        if found := next((problem for problem in problems if problem.severity == "error"), None):
            cure = f"{found.kind.cure}; {look} tells more"  # convert refuses it
        elif drafter.facts.quantization is None:
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
    directory, revision = _served_source(source)
    request = ServeRequest(directory, drafter.facts, goal, drafts, tensor_parallel, alone, revision)
    command = start_command(drafter, spec, request, arguments=arguments, remedy=again)
    argv = command.located(python)
    read_notes = (reading_line(drafter), *reading_warnings(drafter))
    return replace(command, argv=argv, notes=(*read_notes, *command.notes, *_drafts(spec, drafter, command, arguments)))


def _drafts(spec: EngineSpec, drafter: Drafter, command: ServeCommand, arguments: Sequence[str]) -> Iterator[str]:
    """How the server chooses its drafts, in words.

    Raises:
        UsageError: it would draw them from a reduced vocabulary, and cannot.
    """
    texts = (*command.argv, *command.files.values(), *arguments)
    if drafter.facts.reduced_vocab:
        refuse_reduced(spec, texts)
    yield f"drafts, where text is drawn: {draft_method(spec, texts)}"


def _served_source(source: str | Path) -> tuple[str, str | None]:
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
