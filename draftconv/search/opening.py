"""A drafter that is about to be planned for an engine, and the arm that replays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.options import QuantizeOptions
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import find_target
from draftconv.engines import EngineSpec, parse_engine
from draftconv.engines.registry import DEFAULT
from draftconv.errors import Refused, UsageError
from draftconv.options import Place
from draftconv.replay.drafters import refuse_other_trace, target_of
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.replay import Arm
from draftconv.replay.static_scales import StaticScales
from draftconv.replay.target_tables import from_target, semantics
from draftconv.search.planning import Planner
from draftconv.traces.trace import Trace, TraceEntry


def parse_machine(text: str) -> EngineSpec:
    """An engine on its hardware.

    Raises:
        UsageError: no such engine, or no hardware.
    """
    spec = parse_engine(text)
    if spec.hardware is None:
        raise UsageError(
            f"--for {text} names no hardware",
            why="what may be small depends on what the machine multiplies",
            cure=f"write --for {text}:b200, say; `draftconv recipes --for {text}` lists them all",
        )
    return spec


def open_planner(
    source: Place, spec: EngineSpec, options: QuantizeOptions, trace: Trace | None, *, calibrated: bool = True
) -> Planner:
    """Read a drafter, hold it to the trace, and be ready to plan it.

    Raises:
        Refused: it is quantized already.
        UsageError: the trace is of another target.
        BadCheckpoint, Undecided: it cannot be read.
    """
    traced = None if trace is None else target_of(trace)
    target = find_target(options.target, options.target_layers) or traced
    drafter = options.convert.reading.read(open_checkpoint(source, download=True), target)
    if trace is not None:
        refuse_other_trace(drafter, trace, target)
    if drafter.facts.quantization is not None:
        raise Refused(
            f"this drafter is quantized already: {drafter.facts.quantization}",
            why="errors of both would add up, and its own are no reference",
            cure="start from the 16-bit drafter that it was made from",
        )
    rule = spec.name if spec.name in semantics() else DEFAULT
    findings = check_drafter(drafter, target, level="sample")
    return Planner(drafter, findings, target, spec, options, rule, calibrated)


def static_scales(
    planner: Planner,
    trace: Trace,
    entries: Sequence[TraceEntry],
    arm: Arm,
    dtype: str,
    device: str,
    tokens: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> StaticScales:
    """What measures static scales on some requests.

    Args:
        arm: the drafter as `load` gave it. `tokens`: rows of a pruned head → the tokens that it keeps.
    """
    facts, usual = planner.drafter.facts, LoadSettings(trace.table)
    alike = from_target(facts, planner.semantics) == from_target(facts, usual.semantics)
    alike = alike and (dtype, device) == (usual.dtype, usual.device)
    return StaticScales(planner.drafter, trace, entries, tokens, arm if alike else None)


def load(
    planner: Planner, drafter: Drafter, trace: Trace, dtype: str, device: str, rounds: frozenset[str] | None = None
) -> Arm:
    """A drafter to replay, as the planner's engine gives it its tables.

    Args:
        rounds: of a quantized one the weights whose inputs the engine rounds; None is as its file says.

    Raises:
        UsageError, BadCheckpoint: as `load_arm`.
    """
    how = LoadSettings(cache(trace.table), planner.semantics, dtype, device)
    return load_arm(drafter.checkpoint.name, drafter, how, rounds=rounds)
