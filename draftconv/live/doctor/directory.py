"""What is known of a drafter's directory before a server is asked, and what to type next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, EngineSpec
from draftconv.engines.rules import BrokenRule
from draftconv.live.doctor.options import DoctorOptions
from draftconv.options import Place

RIGHT_START = "start it with the command that `draftconv serve` prints"


def broken_rules(drafter: Drafter, target: Target | None, spec: EngineSpec) -> tuple[BrokenRule, ...]:
    """Rules by which the engine refuses or mis-reads the directory of a drafter itself."""
    known = frozenset(problem.code for problem in check_drafter(drafter, target).problems)
    verdict = ENGINES[spec.name].check(drafter.checkpoint, drafter.facts, target, spec, known)
    return tuple(line for line in verdict.lines if line.rule.effect in ("mis-read", "refused"))


def next_command(
    place: Place, spec: EngineSpec, options: DoctorOptions, broken: Sequence[BrokenRule]
) -> tuple[str, ...]:
    """A directory that is not for this engine is converted; one that is, is to be served."""
    target = () if options.target is None else ("--target", str(options.target))
    if broken:
        out = f"{Path(str(place)).name}-{spec.name}"
        return ("draftconv", "convert", str(place), out, "--to", ENGINES[spec.name].layout, *target)
    depth = options.num_speculative_tokens
    return (
        *("draftconv", "serve", str(place), "--for", options.engine, *target),
        *(() if depth is None else ("--num-speculative-tokens", str(depth))),
    )


def told_version(spec: EngineSpec, typed: str, told: str) -> EngineSpec:
    """The version that the server tells, unless one was typed."""
    numbers = re.match(r"\d+(\.\d+)*", told)
    return spec if "@" in typed or numbers is None else replace(spec, version=numbers[0])
