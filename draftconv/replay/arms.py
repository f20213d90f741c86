"""Who takes part in a replay: the reference, the candidates, and what is made of them for a closer look."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.errors import Refused, UsageError
from draftconv.options import several
from draftconv.quantization.exclusions import select
from draftconv.quantization.recipes import MAIN, Recipe, find_recipe
from draftconv.quantization.scheme import Scheme, recorded
from draftconv.replay.arithmetic import ArmArithmetic, AskedEngines, WrittenFor, recipe_parts
from draftconv.replay.drafters import load_drafters, read_drafters, refuse_other_calibration, target_of
from draftconv.report.arms import ArmNames, bits, comparison_kind, gate
from draftconv.report.model import ArmInfo
from draftconv.report.verdict import EXACT, Gate
from draftconv.traces.trace import Trace, open_trace

if TYPE_CHECKING:
    from draftconv.replay import controls, replay
    from draftconv.replay.gptq import GptqCalibration
    from draftconv.replay.options import ParityOptions


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
    from draftconv.replay.load_arm import replaced_one_by_one

    names = ArmNames()
    recipes = [find_recipe(spec) for spec in several(options.fake_quant)]
    typed = (reference, *candidates, *several(options.fake_quant))
    asked = AskedEngines.of(typed, options.as_engine, target_of(trace), written_for)
    drafters = read_drafters(trace, (reference, *candidates), options, names)
    arithmetics = asked.arithmetics(drafters, recipes)
    leader, *rest = load_drafters(trace, drafters, arithmetics[: len(drafters)], options, progress)
    first = ReplayArm(leader.about, leader.arm)
    sides = []
    for side in rest:
        parts = (
            _name_parts(replaced_one_by_one(leader.arm, side.arm), side.arm.name, names) if options.attribute else {}
        )
        side_gate = gate(comparison_kind(leader.drafter, side.drafter), options.margin)
        sides.append(ReplayArm(side.about, side.arm, side_gate, parts))
    for recipe, chosen in zip(recipes, arithmetics[len(drafters) :], strict=True):
        gptq = _gptq(leader.drafter, recipe, trace, options)
        sides.append(_quantized_arm(first, leader.drafter, recipe, chosen, options, names, gptq))
    _refuse_unused_calibration(recipes, options)
    line = ReplayArms(first, tuple(sides), replace(leader.arm, name=names.new(f"{leader.arm.name} again")))
    return _with_controls(line, leader.drafter, trace, names) if options.self_test else line


# ── what is made of them ───────────────────────────────────────────────────────────


def _name_parts(parts: Mapping[str, replay.Arm], whose: str, names: ArmNames) -> dict[str, replay.Arm]:
    return {tensor: replace(arm, name=names.new(f"{whose}: {tensor}")) for tensor, arm in parts.items()}


def _quantized_arm(
    reference: ReplayArm,
    drafter: Drafter,
    recipe: Recipe,
    chosen: ArmArithmetic | None,
    options: ParityOptions,
    names: ArmNames,
    gptq: GptqCalibration | None,
) -> ReplayArm:
    """The reference as a recipe would leave it."""
    from draftconv.quantization.simulate import simulate, stored_dtypes

    quantized = select(recipe, drafter.facts).quantized
    if chosen is not None and chosen.rounds is not None:
        recipe = _rounding_only(recipe, chosen.rounds, drafter.facts)
    first, stored, qvalues = reference.arm, stored_dtypes(drafter), gptq.qvalues if gptq else None
    name = names.new(f"{first.name} as {recipe.name}")
    parts = {
        tensor: replace(first, model=simulate(first.model, recipe, only=[tensor], stored=stored, qvalues=qvalues))
        for tensor in (quantized if options.attribute else ())
    }
    schemes = {part.scheme: list(part.names) for part in recipe_parts(recipe, drafter.facts)}
    done: dict[str, object] = {"scheme": _recorded(recipe.scheme), "exclude": sorted(recipe.exclude)}
    if gptq:
        done["calibration"] = gptq.key
    if recipe.roles:
        done["roles"] = [(_recorded(scheme), names) for scheme, names in schemes.items()]
    about = replace(
        reference.about,
        name=name,
        arithmetic=chosen.told if chosen else None,
        quantization=f"simulated {recipe.name}: {recipe.numbers}",
        content=hashlib.sha256(f"{reference.about.content} {json.dumps(done, sort_keys=True)}".encode()).hexdigest(),
    )
    arm = replace(first, name=name, model=simulate(first.model, recipe, stored=stored, qvalues=qvalues))
    kind = bits(*(scheme.weights.dtype for scheme in schemes))
    return ReplayArm(about, arm, gate(kind, options.margin), _name_parts(parts, name, names))


def _gptq(drafter: Drafter, recipe: Recipe, judge: Trace, options: ParityOptions) -> GptqCalibration | None:
    """What GPTQ rounds of a simulated recipe; None where it rounds nothing, or there is no trace for it.

    Raises:
        UsageError: the trace is the one that judges, of another target, or too short.
        Refused: the drafter is quantized already.
    """
    from draftconv.replay.gptq import GptqCalibration

    schemes = {name: recipe.of(role) for name, role in select(recipe, drafter.facts).roles.items()}
    if options.calibrate is None or all(scheme.rounding != "gptq" for scheme in schemes.values()):
        return None
    trace = open_trace(options.calibrate)
    if {entry.tokens for entry in trace.entries} & {entry.tokens for entry in judge.entries}:
        raise UsageError(
            "--calibrate and --trace have texts in common",
            why="a drafter that is judged on what it was calibrated on looks better than it is",
            cure="calibrate on a trace of other prompts",
        )
    refuse_other_calibration(drafter, trace, judge)
    if drafter.facts.quantization is not None:
        raise Refused(
            f"{drafter.checkpoint.name} is quantized already",
            why="GPTQ rounds what it was quantized from",
            cure="name the 16-bit drafter",
        )
    gptq = GptqCalibration(drafter, {name: drafter.tensors[name] for name in schemes}, schemes, trace, options.device)
    gptq.refuse_unfit()
    return gptq


def _refuse_unused_calibration(recipes: Sequence[Recipe], options: ParityOptions) -> None:
    schemes = [scheme for recipe in recipes for scheme in (recipe.scheme, *recipe.roles.values())]
    if options.calibrate is not None and all(scheme.rounding != "gptq" for scheme in schemes):
        raise UsageError(
            "--calibrate is for --fake-quant of a recipe that rounds by GPTQ",
            cure="leave it out, or add --fake-quant w4a16-gptq",
        )


def _rounding_only(recipe: Recipe, rounds: Collection[str], facts: Facts) -> Recipe:
    """The recipe without the activations of weights that are not among `rounds`."""

    def plain(role: str, scheme: Scheme) -> Scheme:
        names = [name for name, its in select(recipe, facts).roles.items() if its == role]
        return scheme if any(name in rounds for name in names) else replace(scheme, inputs=None)

    roles = {role: plain(role, scheme) for role, scheme in recipe.roles.items()}
    return replace(recipe, scheme=plain(MAIN, recipe.scheme), roles=roles)


def _recorded(scheme: Scheme) -> dict[str, object]:
    inputs = recorded(scheme.inputs) if scheme.inputs else None
    return {"weights": recorded(scheme.weights), "inputs": inputs}


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
