"""Targets that an engine is known not to start with, by how their weights are stored: `Engine.targets`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draftconv.drafter.targets import Target, known_targets
from draftconv.engines.hardware import CHIPS, Chip
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec, Evidence
from draftconv.errors import Refused

INT4 = "compressed-tensors INT4"
NVFP4 = "modelopt NVFP4"
"""What `Target.stored` says of the known targets that stop somewhere."""


@dataclass(frozen=True, slots=True)
class TargetStop:
    """Weights of a target that stop an engine.

    Attributes:
        stored: as `Target.stored`. `chips`: where they do; none is everywhere.
    """

    stored: str
    says: str
    source: str
    evidence: Evidence
    chips: tuple[Chip, ...] = ()


def target_stop(spec: EngineSpec, target: Target) -> TargetStop | None:
    """Why an engine does not start with a target; None where that is not known.

    Without hardware in `spec`: on none of the engine's hardware.
    """
    engine = ENGINES[spec.name]
    chips = {CHIPS[name] for name in ((spec.hardware,) if spec.hardware else engine.hardware)}
    stops = (stop for stop in engine.targets if stop.stored == target.stored)
    return next((stop for stop in stops if not stop.chips or chips <= {*stop.chips}), None)


def refuse_target(spec: EngineSpec, target: Target) -> None:
    """Refuse a target that the engine does not start with.

    Raises:
        Refused: it is one; names the same model in a form that it does start with, or who starts with this one.
    """
    if (stop := target_stop(spec, target)) is None:
        return
    where = f" on {spec.hardware}" if spec.hardware and stop.chips else ""
    raise Refused(
        f"{ENGINES[spec.name].title} does not start with {target.name}{where}",
        why=f"its weights are {target.stored}: {stop.says} [{stop.evidence}: {stop.source}]",
        cure=next(_cures(spec, target), "give --target a checkpoint of the same model that is stored otherwise"),
    )


def instead_of(spec: EngineSpec, target: Target) -> Iterator[Target]:
    """Known targets that are the same model, and with which the engine is not known to stop."""
    for other in known_targets().values():
        if target.model and other.model == target.model and target_stop(spec, other) is None:
            yield other


def _cures(spec: EngineSpec, target: Target) -> Iterator[str]:
    for other in instead_of(spec, target):
        yield f"--target {other.name} is the same model in {other.stored or '16 bits'} ({other.repo})"
    hardware = f":{spec.hardware}" if spec.hardware else ""
    for name, engine in ENGINES.items():
        other_spec = EngineSpec(name, engine.version, spec.hardware)
        known = spec.hardware is None or spec.hardware in engine.hardware
        if known and name != spec.name and target_stop(other_spec, target) is None:
            yield f"--for {name}{hardware} is not known to stop on it"
