"""Which modules of a drafter the lists of its config.json name, as far as that can be told without an engine."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from draftconv.checkpoint import show_some
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.fused_projections import FUSED
from draftconv.drafter.tensors import expected
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.format_detection import FormatMatch, Parts
from draftconv.quantization.recipes import PER_MODULE

NAMING = frozenset({PER_MODULE})
"""Styles that name every quantized module: one that is not named never is."""

PLAIN = ("fc", "self_attn.", "mlp.")
"""What engines build as quantized linears unless it is excluded."""

LITERAL = re.compile(r"(?:re:)?[\^]?(?:[.]?[*]|\\b|[.]|\\[.])*([A-Za-z_](?:\w|[\\]?[.])*)\$?")
"""An entry of an exclusion list that ends in a name: `fc`, `*fc`, `re:.*\\bfc$`. Others are left to the engines."""


OUTER = re.compile(r"^(?:.*\.)?layers\.\d+\.|^model\.")
"""What engines put before the name of a module: where they hang it, and a layer's number, which counts on from
the target's."""


JOINED: Mapping[str, tuple[str, ...]] = {**FUSED, "fused_qkv_a_proj_with_mqa": FUSED["fused_qkv_a_proj"]}
"""What lists may call weights that engines join."""


def excluded_modules(drafter: Drafter, config_match: FormatMatch) -> tuple[str, ...]:
    """Modules that config.json excludes by name."""
    modules = matrices(drafter)
    named = {module for entry in config_match.declared.ignore for module in names_in(entry, modules)}
    return tuple(module for module in modules if module in named)


def names_in(entry: str, modules: Iterable[str]) -> list[str]:
    """The modules that an entry of a list ends in; none where it ends in no name, which is left to the engines."""
    match = LITERAL.fullmatch(entry)
    if match is None:
        return []
    name = OUTER.sub("", match[1].replace("\\.", ".").removesuffix(WEIGHT))
    parts = JOINED.get(name.rpartition(".")[2], (name,))
    return [module for module in modules if any(f".{module}".endswith(f".{part}") for part in parts)]


def unlisted_modules(drafter: Drafter, excluded: Collection[str], modules: Mapping[str, Parts]) -> tuple[str, ...]:
    """Modules that engines may build quantized, and that are plain and not excluded."""
    linear = [m for m in matrices(drafter) if m not in modules and m not in excluded]
    return tuple(m for m in linear if f"{m}{WEIGHT}" in drafter.tensors and any(part in m for part in PLAIN))


def matrices(drafter: Drafter) -> list[str]:
    return [name.removesuffix(WEIGHT) for name, tensor in expected(drafter.facts).items() if len(tensor.shape) == 2]


def exclusion_findings(
    drafter: Drafter, config_match: FormatMatch, modules: Mapping[str, Parts]
) -> tuple[list[str], tuple[str, ...]]:
    """What config.json excludes although it is quantized, and plain modules that it does not exclude."""
    excluded = excluded_modules(drafter, config_match)
    packed = [module for module in excluded if module in modules]
    lies = [f"{show_some(packed)} quantized, although config.json excludes it"] if packed else []
    excludes = config_match.declared.ignore and config_match.declared.style not in NAMING
    return lies, unlisted_modules(drafter, excluded, modules) if excludes else ()
