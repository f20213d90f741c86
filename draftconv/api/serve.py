"""The exact command that serves a drafter on an engine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from draftconv.api.hints import hints
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Mla
from draftconv.drafter.targets import find_target
from draftconv.engines import ENGINES, EngineSpec, parse_engine
from draftconv.engines.kernels import stored_kernel
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
    alone: bool = False,
) -> ServeCommand:
    """Build the server command for a drafter that this engine reads rightly.

    Args:
        source: directory or Hub id; the server is given the same. `target`: see `find_target`.
        drafts: tokens proposed per step (K). `tensor_parallel`: devices for the target.
        alone: the target without the drafter, otherwise started alike.

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
    start = Start(str(source), drafter.facts, goal, drafts, tensor_parallel, alone)
    found = ENGINES[spec.name].command(start, spec)
    return replace(found, notes=(*found.notes, *_arithmetic(drafter, spec)))


def _arithmetic(drafter: Drafter, spec: EngineSpec) -> tuple[str, ...]:
    """What is multiplied on this hardware where the drafter is quantized, and what changes it."""
    if drafter.facts.quantization is None:
        return ()
    from draftconv.quantization.reading import find_stored

    stored = find_stored(drafter)
    declared = stored.declared
    mla = isinstance(drafter.facts.attention, Mla)
    kernel = stored_kernel(spec, stored.format.id, declared.grid, declared.per, declared.inputs, mla=mla)
    return (f"the drafter's quantized weights: {kernel.executed}", *kernel.notes) if kernel else ()
