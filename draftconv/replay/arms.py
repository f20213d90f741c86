"""Who takes part in a replay: the reference, the candidates, and what is made of them for a closer look."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.checkpoint import ByteCounter, open_checkpoint
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.errors import UsageError
from draftconv.layouts.drafter_reader import drafter_readers
from draftconv.options import several
from draftconv.quantization.exclusions import select
from draftconv.quantization.recipes import Recipe, find_recipe
from draftconv.quantization.scheme import recorded
from draftconv.replay.arithmetic import ArmArithmetic, AskedEngines, WrittenFor
from draftconv.report.arms import ArmNames, about_arm, bits, bytes_of, comparison_kind, gate
from draftconv.report.model import ArmInfo
from draftconv.report.verdict import EXACT, Gate
from draftconv.traces.trace import Trace

if TYPE_CHECKING:
    from draftconv.replay import controls, replay
    from draftconv.replay.options import ParityOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayArm:
    """A drafter in the run: what the report says of it, what is replayed, and what is asked of it.

    Attributes:
        parts: tensor name → the reference with only that tensor as it is here.
    """

    about: ArmInfo
    arm: replay.Arm
    gate: Gate = EXACT
    parts: Mapping[str, replay.Arm] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayArms:
    """Everything that is replayed in one pass.

    Attributes:
        again: the reference once more (A/A).
        twin: the reference in INT4, which some faults start from; None without `self_test`.
        broken: every fault with the reference broken by it, or why it cannot be.
    """

    reference: ReplayArm
    candidates: tuple[ReplayArm, ...]
    again: replay.Arm
    twin: replay.Arm | None = None
    broken: tuple[tuple[controls.PlantedFault, replay.Arm | str], ...] = ()

    def others(self) -> list[replay.Arm]:
        """Arms of which only counts are wanted."""
        parts = [part for side in self.candidates for part in side.parts.values()]
        broken = [arm for _, arm in self.broken if not isinstance(arm, str)]
        return [self.again, *parts, *([self.twin] if self.twin else []), *broken]


def load_arms(
    trace: Trace,
    reference: str | Path,
    candidates: Sequence[str | Path],
    options: ParityOptions,
    written_for: WrittenFor,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayArms:
    """Read, check and load everybody.

    Args:
        written_for: the engines in the record of a drafter.
        progress: told the bytes of drafters that were read so far, and all that will be.

    Raises:
        UsageError: a drafter is of another target than the trace, or the trace lacks what it needs.
        BadCheckpoint, Refused, Undecided: a drafter cannot be read or computed.
    """
    from draftconv.replay.load_arm import LoadSettings, fed_by, load_arm, replaced_one_by_one

    names = ArmNames()
    recipes = [find_recipe(spec) for spec in several(options.fake_quant)]
    typed, target = (reference, *candidates, *several(options.fake_quant)), _target_of(trace)
    asked = AskedEngines.of(typed, options.as_engine, target, written_for)
    drafters = {
        names.new(drafter.checkpoint.name): drafter
        for drafter in _read_drafters(target, (reference, *candidates), options)
    }
    for name, drafter in drafters.items():
        _refuse_other_target(name, drafter, trace)
        trace.columns(fed_by(name, drafter))
    first_arithmetic, *arithmetics = asked.arithmetics(drafters, recipes)
    logger.info("replaying %s, %s on %s", ", ".join(drafters), options.dtype, options.device)
    total = 2 * sum(bytes_of(drafter) for drafter in drafters.values())  # once to hash it, once to load it
    tally = ByteCounter(None if progress is None else lambda done: progress(done, total))
    how = LoadSettings(cache(trace.table), options.semantics, options.dtype, options.device)

    (first_name, first_drafter), *rest = drafters.items()
    first = load_arm(first_name, first_drafter, how, weight_only=_weight_only(first_arithmetic))
    tally.add(bytes_of(first_drafter))
    leader = ReplayArm(_told(about_arm(first_name, first_drafter, tally), first_arithmetic), first)
    sides = []
    for (name, drafter), chosen in zip(rest, arithmetics, strict=False):
        arm = load_arm(name, drafter, how, like=first.model, weight_only=_weight_only(chosen))
        tally.add(bytes_of(drafter))
        parts = _name_parts(replaced_one_by_one(first, arm), name, names) if options.attribute else {}
        arm_gate = gate(comparison_kind(first_drafter, drafter), options.margin)
        sides.append(ReplayArm(_told(about_arm(name, drafter, tally), chosen), arm, arm_gate, parts))
    for recipe, chosen in zip(recipes, arithmetics[len(rest) :], strict=True):
        sides.append(_quantized_arm(leader, first_drafter, recipe, chosen, options, names))
    line = ReplayArms(leader, tuple(sides), replace(first, name=names.new(f"{first_name} again")))
    return _with_controls(line, first_drafter, trace, names) if options.self_test else line


# ── drafters ───────────────────────────────────────────────────────────────────────


def _target_of(trace: Trace) -> Target:
    about = trace.about
    return Target(about.target, about.layers, about.family, hidden=about.hidden, vocab=about.vocab)


def _read_drafters(target: Target, specs: Sequence[str | Path], options: ParityOptions) -> list[Drafter]:
    readers = drafter_readers(specs, options.layout, options.aux_convention, accept_detected=options.accept_detected)
    return [
        reader.read(open_checkpoint(spec, download=True), target) for reader, spec in zip(readers, specs, strict=True)
    ]


def _refuse_other_target(name: str, drafter: Drafter, trace: Trace) -> None:
    facts, about = drafter.facts, trace.about
    for what, its, targets in (
        ("a vocabulary of", facts.vocab, about.vocab),
        ("states of width", facts.target_hidden, about.hidden),
    ):
        if its != targets:
            raise UsageError(
                f"{name} is made for {what} {its}, {about.target} has {targets}",
                why="a drafter can only be replayed on the target that it was trained for",
                cure="give a trace of its own target",
            )


# ── what is made of them ───────────────────────────────────────────────────────────


def _name_parts(parts: Mapping[str, replay.Arm], whose: str, names: ArmNames) -> dict[str, replay.Arm]:
    return {tensor: replace(arm, name=names.new(f"{whose}: {tensor}")) for tensor, arm in parts.items()}


def _weight_only(chosen: ArmArithmetic | None) -> bool:
    return chosen is not None and chosen.weight_only


def _told(about: ArmInfo, chosen: ArmArithmetic | None) -> ArmInfo:
    return about if chosen is None else replace(about, arithmetic=chosen.told)


def _quantized_arm(
    reference: ReplayArm,
    drafter: Drafter,
    recipe: Recipe,
    chosen: ArmArithmetic | None,
    options: ParityOptions,
    names: ArmNames,
) -> ReplayArm:
    """The reference as a recipe would leave it."""
    from draftconv.quantization.simulate import simulate, stored_dtypes

    if _weight_only(chosen):
        recipe = replace(recipe, scheme=replace(recipe.scheme, inputs=None))
    first, stored = reference.arm, stored_dtypes(drafter)
    name = names.new(f"{first.name} as {recipe.name}")
    parts = {
        tensor: replace(first, model=simulate(first.model, recipe, only=[tensor], stored=stored))
        for tensor in (select(recipe, drafter.facts).quantized if options.attribute else ())
    }
    weights, inputs = recipe.scheme.weights, recipe.scheme.inputs
    scheme = {"weights": recorded(weights), "inputs": recorded(inputs) if inputs else None}
    done = {"scheme": scheme, "exclude": sorted(recipe.exclude)}
    about = replace(
        reference.about,
        name=name,
        arithmetic=chosen.told if chosen else None,
        quantization=f"simulated {recipe.name}: {recipe.scheme}",
        content=hashlib.sha256(f"{reference.about.content} {json.dumps(done, sort_keys=True)}".encode()).hexdigest(),
    )
    arm = replace(first, name=name, model=simulate(first.model, recipe, stored=stored))
    return ReplayArm(about, arm, gate(bits(weights.dtype), options.margin), _name_parts(parts, name, names))


def _with_controls(line: ReplayArms, drafter: Drafter, trace: Trace, names: ArmNames) -> ReplayArms:
    from draftconv.quantization.simulate import stored_dtypes
    from draftconv.replay.controls import FAULTS, subject

    arm = line.reference.arm
    of = subject(arm, trace.about.layers, trace.about.boundaries, stored_dtypes(drafter))
    broken: list[tuple[controls.PlantedFault, replay.Arm | str]] = []
    for fault in FAULTS:
        outcome = fault.apply(of)
        named = outcome if isinstance(outcome, str) else replace(outcome, name=names.new(f"{arm.name}: {fault.name}"))
        broken.append((fault, named))
    twin = replace(of.with_qvalues(), name=names.new(f"{arm.name} in INT4"))
    return replace(line, twin=twin, broken=tuple(broken))
