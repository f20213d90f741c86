"""Which layers of the target SGLang captures."""

from __future__ import annotations

from draftconv.drafter.boundaries import IDS, default_triple, sglang_captures, sglang_convention
from draftconv.drafter.facts import Taps
from draftconv.engines import checks
from draftconv.engines.base import Reading


def captured(reading: Reading) -> checks.Boundaries:
    """Boundaries captured for the nested ids; UNKNOWN when that depends on a target not given."""
    ids, target = reading.eagle.integers(IDS), reading.target
    if not ids:
        if target is None:
            return Taps.DEFAULT
        return tuple(sorted(set(default_triple(target.layers, target.family, "sglang"))))
    if target is not None and target.family is not None:
        return sglang_captures(ids, target.family, target.layers)
    if sglang_convention(ids, None, target.layers if target else None) is None:
        return Taps.UNKNOWN
    return tuple(sorted({i + 1 for i in ids}))
