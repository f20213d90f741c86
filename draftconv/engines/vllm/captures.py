"""Which layers of the target vLLM captures, by Model Runner."""

from __future__ import annotations

from draftconv.drafter.boundaries import IDS, default_triple
from draftconv.drafter.facts import Taps
from draftconv.engines import checks
from draftconv.engines.base import Reading


def top_ids(reading: Reading) -> tuple[int, ...] | None:
    return reading.config.integers(IDS)


def _captured(reading: Reading, ids: tuple[int, ...] | None) -> checks.Boundaries:
    """Boundaries captured for these ids: taken literally, sorted; none means the default triple."""
    target = reading.target
    if not ids:
        return tuple(sorted(set(default_triple(target.layers)))) if target else Taps.DEFAULT
    return tuple(sorted(b for b in set(ids) if b >= 0 and (target is None or b <= target.layers)))


def captured_v2(reading: Reading) -> checks.Boundaries:
    """Model Runner V2: the top level, else `eagle_config.layer_ids`."""
    return _captured(reading, top_ids(reading) or reading.eagle.integers("layer_ids"))


def captured_v1(reading: Reading) -> checks.Boundaries:
    return _captured(reading, top_ids(reading) or reading.eagle.integers(IDS))


def v1_by_default(reading: Reading) -> bool:
    """V1 is what runs on a CPU, and before 0.33 as far as is known; unnamed hardware may be either."""
    return reading.spec.hardware in (None, "cpu") or reading.spec.before(0, 33)
