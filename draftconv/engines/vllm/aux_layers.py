"""Which layers of the target vLLM captures, by Model Runner."""

from __future__ import annotations

from collections.abc import Sequence

from draftconv.drafter.boundaries import IDS, default_triple
from draftconv.drafter.facts import AuxLayers
from draftconv.drafter.targets import Family
from draftconv.engines import checks
from draftconv.engines.rules import SimulatedLoad
from draftconv.errors import Refused


def spelled(boundaries: Sequence[int], family: Family | None) -> tuple[int, ...]:
    """Boundaries as ids at the top level: the numbers themselves.

    Raises:
        Refused: boundary 0 on a DeepSeek/Kimi target (`residual` is None there; run on 0.32.0).
    """
    if boundaries[0] == 0 and family == "deepseek":
        raise Refused(
            "vLLM crashes on boundary 0 with a DeepSeek/Kimi target",
            why="deepseek_v2.py reads a residual that does not exist before the first layer",
        )
    return tuple(boundaries)


def top_ids(load: SimulatedLoad) -> tuple[int, ...] | None:
    return load.config.integers(IDS)


def _captured(load: SimulatedLoad, ids: tuple[int, ...] | None) -> checks.Boundaries:
    """Boundaries captured for these ids: taken literally, sorted; none means the default triple."""
    target = load.target
    if not ids:
        return tuple(sorted(set(default_triple(target.layers)))) if target else AuxLayers.DEFAULT
    return tuple(sorted(b for b in set(ids) if b >= 0 and (target is None or b <= target.layers)))


def captured_v2(load: SimulatedLoad) -> checks.Boundaries:
    """Model Runner V2: the top level, else `eagle_config.layer_ids`."""
    return _captured(load, top_ids(load) or load.eagle.integers("layer_ids"))


def captured_v1(load: SimulatedLoad) -> checks.Boundaries:
    return _captured(load, top_ids(load) or load.eagle.integers(IDS))


def v1_by_default(load: SimulatedLoad) -> bool:
    """V1 is what runs on a CPU, and before 0.33 as far as is known; unnamed hardware may be either."""
    return load.spec.hardware in (None, "cpu") or load.spec.before(0, 33)
