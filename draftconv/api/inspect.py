"""Look at a drafter: what it is, what is wrong with it, and which engine reads it rightly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.api.hints import hints
from draftconv.checkpoint import open_checkpoint, show_some
from draftconv.drafter.checks import Findings, check_drafter, deep_bytes
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.problems import Problem
from draftconv.drafter.targets import Target, find_target
from draftconv.engines import ENGINES, Verdict, parse_engine
from draftconv.errors import DraftconvError
from draftconv.layouts.reading import read_drafter

if TYPE_CHECKING:
    from draftconv.api.convert import ConvertOptions


@dataclass(frozen=True, slots=True)
class Weights:
    """How quantized weights are stored.

    Attributes:
        format: its id; None when they cannot be read.
        says: in words. `findings`: what is not as config.json says, or why they cannot be read.
    """

    format: str | None
    says: str
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything `inspect` found out."""

    drafter: Drafter
    target: Target | None
    problems: tuple[Problem, ...]
    not_made: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    weights: Weights | None = None


def inspect(
    source: str | Path,
    engines: Sequence[str] = (),
    *,
    target: str | None = None,
    target_layers: int | None = None,
    layout: str | None = None,
    aux_convention: str | None = None,
    deep: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Read a drafter's headers, config and vocabulary maps (with `deep`, every byte) and judge it.

    Args:
        source: directory, weights file or Hub id; on the Hub a few MB are read by range.
        engines: as `ENGINE[@VERSION][:HARDWARE]`; all engines at their newest when empty.
        progress: called with the bytes that `deep` has read so far and in all.

    Raises:
        BadCheckpoint, NotADrafter, NeedsExport: it is not a readable drafter.
        UsageError: unknown engine, layout, target or convention.
    """
    specs = [parse_engine(text) for text in engines or ENGINES]
    found = find_target(target, target_layers)
    drafter = read_drafter(open_checkpoint(source), hints(layout, aux_convention, found))
    total = deep_bytes(drafter, found) if deep and progress else 0
    findings = check_drafter(
        drafter,
        found,
        level="deep" if deep else "sample",
        progress=(lambda done: progress(done, total)) if progress else None,
    )
    known = frozenset(problem.code for problem in findings.problems)
    verdicts = tuple(ENGINES[spec.name].check(drafter.checkpoint, drafter.facts, found, spec, known) for spec in specs)
    return Inspection(drafter, found, findings.problems, findings.not_made, verdicts, _weights(drafter))


def _weights(drafter: Drafter) -> Weights | None:
    if drafter.facts.quantization is None:
        return None
    from draftconv.quantization.reading import find_stored

    try:
        stored = find_stored(drafter)
    except DraftconvError as error:
        return Weights(None, "not known", (f"{error.what}: {error.why}" if error.why else error.what,))
    findings = list(stored.findings)
    if stored.unlisted:
        names = show_some(stored.unlisted)
        findings.append(f"{names} plain and not excluded by config.json: some engines take it for quantized, see below")
    return Weights(stored.format.id, stored.title, tuple(findings))


def remedy(found: Inspection) -> ConvertOptions | None:
    """The conversion after which the engines that were asked about read the drafter rightly, if there is one.

    It has been planned, not only guessed: with the same target and source, `convert` will do it.
    """
    from draftconv.api.convert import ConvertOptions, plan_drafter
    from draftconv.api.repairs import REPAIRS, WITH_PATH

    broken = [problem.code for problem in found.problems if problem.severity == "error"]
    failing = [verdict.spec.name for verdict in found.verdicts if verdict.status != "loads" or broken]
    if not failing or not set(broken) <= REPAIRS.keys() - WITH_PATH:
        return None
    findings = Findings(found.problems, found.not_made)
    for to in dict.fromkeys([*(["portable"] if len(found.verdicts) > 1 else []), *failing]):
        options = ConvertOptions(to=to, repairs=tuple(dict.fromkeys(broken)), card=False)
        try:
            plan_drafter(found.drafter, findings, found.target, options)
        except DraftconvError:
            continue
        return options
    return None
