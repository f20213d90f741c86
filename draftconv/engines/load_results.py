"""Pieces of weight loaders that engines share: fused projections, packed weights, sorting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from draftconv.drafter.fused_projections import FUSED, STORED_FUSED
from draftconv.drafter.names import QPARAMS

LoadResult = tuple[str, ...] | Literal["dropped", "fatal"]
"""What a loader does with one tensor: fill canonical tensors, skip it, or stop."""

Causes = tuple[tuple[str, str], ...]
"""(rule code, pattern of file names): why a loader skips a tensor, first match first."""

_PACKED = re.compile(r"\.(weight_packed|qweight)$")
_OF_WEIGHTS = re.compile(r"\.(weight_\w+|input_(scale|zero_point|global_scale)|pre_quant_scale|qzeros|scales|g_idx)$")
"""Companions that belong to a weight; the others are of attention's cache, which engines keep elsewhere."""


def cause(name: str, causes: Causes) -> str | None:
    """The rule that speaks of a skipped tensor; None when no row does."""
    return next((code for code, pattern in causes if re.search(pattern, name)), None)


def plain_name(name: str) -> str:
    """What a packed weight would be called as floats; any other name as it is."""
    return _PACKED.sub(".weight", name)


def fused_parts(name: str) -> tuple[str, ...]:
    """The canonical tensors inside a pre-fused projection; the name itself for any other."""
    for fused in STORED_FUSED:
        if f".{fused}." in name:
            return tuple(name.replace(fused, part) for part in FUSED[fused])
    return (name,)


def is_fused(name: str) -> bool:
    """True for a pre-fused projection."""
    return any(f".{fused}." in name for fused in STORED_FUSED)


@dataclass(frozen=True, slots=True)
class LoadResults:
    """What became of every tensor of a file.

    Attributes:
        loaded: canonical name → file name of the tensor that fills it.
        packed: canonical weight → file name of its packed form (compressed-tensors, AWQ, GPTQ).
        beside: canonical weight → its scales, zero points and the like that are found, by suffix.
        dropped: file names skipped silently. `fatal`: file names that stop the load.
    """

    loaded: Mapping[str, str]
    packed: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, frozenset[str]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()


def sort_load_results(
    names: Iterable[str],
    load: Callable[[str], LoadResult],
    never_packed: Mapping[str, Literal["dropped", "fatal"]] = MappingProxyType({}),
) -> LoadResults:
    """Ask `load` about every tensor.

    A packed weight goes where the plain weight of its module would; `never_packed` says what
    happens to it in modules that have no quantized form. Scales and zero points go with their
    weight; only one that lies apart from it can be lost alone.
    """
    names = tuple(names)
    stems = {plain_name(name) for name in names}
    loaded: dict[str, str] = {}
    packed: dict[str, str] = {}
    beside: dict[str, frozenset[str]] = {}
    skipped: dict[Literal["dropped", "fatal"], list[str]] = {"dropped": [], "fatal": []}
    for name in names:
        is_packed = bool(_PACKED.search(name))
        if QPARAMS.search(name) and not is_packed:
            stem, _, suffix = name.rpartition(".")
            match load(f"{stem}.weight"):
                case "dropped" | "fatal" as lost:
                    if _OF_WEIGHTS.search(name) and f"{stem}.weight" not in stems:
                        skipped[lost].append(name)
                case parts:
                    beside |= {part: beside.get(part, frozenset()) | {suffix} for part in parts}
            continue
        result = load(plain_name(name))
        if is_packed and not isinstance(result, str):
            result = next((never_packed[part] for part in result if part in never_packed), result)
        match result:
            case "dropped" | "fatal":
                skipped[result].append(name)
            case parts:
                (packed if is_packed else loaded).update(dict.fromkeys(parts, name))
    return LoadResults(loaded, packed, beside, tuple(skipped["dropped"]), tuple(skipped["fatal"]))
