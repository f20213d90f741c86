"""Pieces of weight loaders that engines share: fused projections, companions, sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from draftconv.drafter.names import COMPANIONS

Fate = tuple[str, ...] | Literal["dropped", "fatal", "companion"]
"""What a loader does with one tensor: fill canonical tensors, skip it, stop, or hand it to the quantizer."""

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def fused_parts(name: str) -> tuple[str, ...]:
    """The canonical tensors inside a pre-fused projection; the name itself for any other."""
    for fused, parts in _FUSED.items():
        if f".{fused}." in name:
            return tuple(name.replace(fused, part) for part in parts)
    return (name,)


def is_fused(name: str) -> bool:
    return any(f".{fused}." in name for fused in _FUSED)


def companion(name: str) -> bool:
    """True for scales, zero points and the like."""
    return bool(COMPANIONS.search(name))


def sort_fates(
    names: Iterable[str], load: Callable[[str], Fate]
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Return canonical name → file name, the names skipped, and the names that stop the load."""
    loaded: dict[str, str] = {}
    dropped: list[str] = []
    fatal: list[str] = []
    for name in names:
        match load(name):
            case "dropped":
                dropped.append(name)
            case "fatal":
                fatal.append(name)
            case "companion":
                pass
            case parts:
                loaded |= dict.fromkeys(parts, name)
    return loaded, tuple(dropped), tuple(fatal)
