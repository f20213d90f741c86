"""The exact command that serves a drafter on an engine."""

from __future__ import annotations

import shlex
from pathlib import Path

from draftconv.api.hints import hints
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.targets import find_target
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.serving import ServeCommand, Start
from draftconv.errors import CheckFailed, UsageError
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
) -> ServeCommand:
    """Build the server command for a drafter that this engine reads rightly.

    Args:
        source: directory or Hub id; the server is given the same. `target`: see `find_target`.
        drafts: tokens proposed per step (K). `tensor_parallel`: devices for the target.

    Raises:
        CheckFailed: the engine would refuse or mis-read it.
        UsageError: unknown engine or target, or a target known by its layer count only.
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
    return ENGINES[spec.name].command(Start(str(source), drafter.facts, goal, drafts, tensor_parallel), spec)
