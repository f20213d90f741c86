"""Which layers of the target SGLang captures."""

from __future__ import annotations

from draftconv.drafter.boundaries import IDS, default_triple, family_captures, family_convention
from draftconv.drafter.facts import AuxLayers
from draftconv.engines import checks
from draftconv.engines.rules import SimulatedLoad


def captured(load: SimulatedLoad) -> checks.Boundaries:
    """Boundaries captured for the nested ids; UNKNOWN when that depends on a target not given. An empty list is one."""
    ids, target = load.eagle.integers(IDS), load.target
    if ids == ():
        return ()
    if ids is None:
        if target is None:
            return AuxLayers.DEFAULT
        # minimax_m3_vl.py adds one to its default triple, unlike every other target (0.5.23)
        later = 1 if target.family == "minimax-m3-vl" else 0
        return tuple(sorted({b + later for b in default_triple(target.layers)}))
    if target is not None and target.family is not None:
        return family_captures(ids, target.family, target.layers)
    if family_convention(ids, None, target.layers if target else None) is None:
        return AuxLayers.UNKNOWN
    return tuple(sorted({i + 1 for i in ids}))


def lone_state(load: SimulatedLoad) -> bool:
    """One captured state of the drafter's width, by which the Llama class tells a fed-back state."""
    states = captured(load)
    alone = isinstance(states, tuple) and len(states) == 1 and load.built.aux != 1
    return alone and not load.mla and load.built.target_hidden == load.built.hidden
