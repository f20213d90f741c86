"""Pieces of weight loaders that engines share: fused projections, packed weights, sorting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from draftconv.drafter.names import COMPANIONS

Fate = tuple[str, ...] | Literal["dropped", "fatal"]
"""What a loader does with one tensor: fill canonical tensors, skip it, or stop."""

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PACKED = re.compile(r"\.(weight_packed|qweight)$")


def fused_parts(name: str) -> tuple[str, ...]:
    """The canonical tensors inside a pre-fused projection; the name itself for any other."""
    for fused, parts in _FUSED.items():
        if f".{fused}." in name:
            return tuple(name.replace(fused, part) for part in parts)
    return (name,)


def is_fused(name: str) -> bool:
    """True for a pre-fused projection."""
    return any(f".{fused}." in name for fused in _FUSED)


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of every tensor of a file.

    Attributes:
        loaded: canonical name → file name of the tensor that fills it.
        packed: canonical weight → file name of its packed form (compressed-tensors, AWQ, GPTQ).
        dropped: file names skipped silently. `fatal`: file names that stop the load.
    """

    loaded: Mapping[str, str]
    packed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()


def sort_fates(
    names: Iterable[str],
    load: Callable[[str], Fate],
    never_packed: Mapping[str, Literal["dropped", "fatal"]] = MappingProxyType({}),
) -> Fates:
    """Ask `load` about every tensor.

    A packed weight goes where the plain weight of its module would; `never_packed` says what
    happens to it in modules that have no quantized form. Scales and zero points follow their
    weight, so they are not asked about.
    """
    loaded: dict[str, str] = {}
    packed: dict[str, str] = {}
    dropped: list[str] = []
    fatal: list[str] = []
    for name in names:
        is_packed = bool(_PACKED.search(name))
        if COMPANIONS.search(name) and not is_packed:
            continue
        fate = load(_PACKED.sub(".weight", name))
        if is_packed and not isinstance(fate, str):
            fate = next((never_packed[part] for part in fate if part in never_packed), fate)
        match fate:
            case "dropped":
                dropped.append(name)
            case "fatal":
                fatal.append(name)
            case parts:
                (packed if is_packed else loaded).update(dict.fromkeys(parts, name))
    return Fates(loaded, packed, tuple(dropped), tuple(fatal))
