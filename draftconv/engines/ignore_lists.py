"""Exclusions and lists of modules, spelled so that the engine they are for matches them.

The inverse of `draftconv.engines.quantized_modules`: what is written here, read there, gives back
exactly the modules that are kept. Lists never hold the names of the checkpoint itself
(`midlayer.*`, `layers.0.*`), which hardly any matcher would find.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import Target
from draftconv.engines.module_names import Module, modules
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec
from draftconv.errors import Refused, Undecided
from draftconv.quantization.recipes import FormatName

Spelling = Literal["regex", "part", "name", "key", "rule", "projection", "exact", "none"]
"""A regular expression with `re:` (compressed-tensors, Quark), part of the name (AWQ), glob or name (ModelOpt), a key
of `extra_config` (auto-round), a rule of `dynamic` (GPTQ), one name per stored projection under the module that it is
joined into, the whole name with its layer, or no list at all."""


@dataclass(frozen=True, slots=True)
class IgnoreLists:
    """How lists of modules in one format are spelled: what stays as it is, and what is quantized.

    Attributes:
        parted: what is quantized, where the weights of one file have several schemes.
    """

    kept: Spelling = "name"
    quantized: Spelling = "none"
    parted: Spelling = "none"


USUAL: Mapping[FormatName, IgnoreLists] = {
    **dict.fromkeys(("compressed-pack", "compressed-int", "compressed-float"), IgnoreLists("regex", parted="regex")),
    **dict.fromkeys(("modelopt-awq", "modelopt-fp8", "modelopt-nvfp4"), IgnoreLists("name", parted="exact")),
    **dict.fromkeys(("quark-int4", "quark-mxfp4"), IgnoreLists("regex")),
    "autoawq": IgnoreLists("part"),
    "gptq": IgnoreLists("none"),
}
"""How engines that have no spelling of their own are told; what has no row is told by name."""


def ignore_names(
    spec: EngineSpec, format_name: FormatName, facts: Facts, kept: Collection[str], target: Target | None = None
) -> tuple[str, ...]:
    """What stays unquantized, as this engine matches it in this format.

    Empty where the format lists what is quantized instead.

    Args:
        kept: canonical weights that stay as they are, with or without `.weight`; others are ignored.
        target: whose layers some engines count on from.

    Raises:
        Refused: the engine has one name for modules that differ, or joins kept and quantized weights.
        Undecided: layers differ, and their names depend on a target that is not given.
    """
    return _list(spec, _lists(spec, format_name).kept, facts, kept, target)


def wide_names(
    format_name: FormatName, facts: Facts, kept: Collection[str], target: Target | None = None
) -> tuple[str, ...]:
    """`ignore_names` of every engine that has a kernel for the format, for a file that none is named for."""
    return tuple(
        dict.fromkeys(
            name for spec in _readers(format_name) for name in ignore_names(spec, format_name, facts, kept, target)
        )
    )


def wide_modules(
    format_name: FormatName,
    facts: Facts,
    quantized: Collection[str],
    target: Target | None = None,
    *,
    parted: bool = False,
) -> tuple[str, ...]:
    """`module_names` of every engine that has a kernel for the format, for a file that none is named for."""
    return tuple(
        dict.fromkeys(
            name
            for spec in _readers(format_name)
            for name in module_names(spec, format_name, facts, quantized, target, parted=parted)
        )
    )


def _readers(format_name: FormatName) -> tuple[EngineSpec, ...]:
    engines = (
        name for name, engine in ENGINES.items() if any(kernel.format == format_name for kernel in engine.kernels)
    )
    return tuple(EngineSpec(name, "0") for name in engines)


def module_names(
    spec: EngineSpec,
    format_name: FormatName,
    facts: Facts,
    quantized: Collection[str],
    target: Target | None = None,
    *,
    parted: bool = False,
) -> tuple[str, ...]:
    """Quantized modules, for engines that this format lists them for; empty for the others.

    Args:
        quantized: canonical weights, with or without `.weight`.
        parted: they are those of one of several schemes.

    Raises:
        Refused, Undecided: as `ignore_names`.
    """
    lists = _lists(spec, format_name)
    spelling = lists.parted if parted else lists.quantized
    return () if spelling == "none" else _list(spec, spelling, facts, quantized, target)


def _lists(spec: EngineSpec, format_name: FormatName) -> IgnoreLists:
    return ENGINES[spec.name].lists.get(format_name, USUAL.get(format_name, IgnoreLists()))


def _list(
    spec: EngineSpec, spelling: Spelling, facts: Facts, names: Collection[str], target: Target | None
) -> tuple[str, ...]:
    """Modules that are made of these weights, in one spelling, each once."""
    chosen, others = _split_modules(spec, facts, names, target)
    match spelling:
        case "none":
            return ()
        case "exact":
            if target is None and any(".layers." in module.name for module in chosen):
                raise Undecided(
                    f"what {ENGINES[spec.name].title} calls quantized modules depends on the target",
                    why="it numbers a drafter's layers on from the target's, and this format lists whole names",
                    cure="give --target or --target-layers",
                )
            return tuple(dict.fromkeys(module.name for module in chosen))
        case "projection":
            return tuple(f"{m.name.rpartition('.')[0]}.{part.rpartition('.')[2]}" for m in chosen for part in m.parts)
        case _:
            return tuple(dict.fromkeys(_spell(module, others, spelling, target) for module in chosen))


def _split_modules(
    spec: EngineSpec, facts: Facts, names: Iterable[str], target: Target | None
) -> tuple[list[Module], list[Module]]:
    """Modules made of these weights, and all others."""
    weights = {name.removesuffix(".weight") for name in names}
    chosen: list[Module] = []
    others: list[Module] = []
    for module in modules(spec, facts, target.layers if target else None):
        inside = [part for part in module.parts if part in weights]
        if inside and len(inside) < len(module.parts):
            outside = next(part for part in module.parts if part not in weights)
            raise Refused(
                f"{inside[0]} and {outside} are one name to {spec.name}: {module.name}",
                why="one of them would be quantized and the other kept",
                cure="quantize both or neither",
            )
        (chosen if inside else others).append(module)
    return chosen, others


def _spell(module: Module, others: Iterable[Module], spelling: Spelling, target: Target | None) -> str:
    """One module so that nothing else is matched; without its layer when all layers are alike."""
    tail = _tail(module)
    if any(_tail(other) == tail for other in others):
        if target is None and ".layers." in module.name:
            raise Undecided(
                f"{tail} is quantized in some layers and kept in others",
                why="the engine numbers a drafter's layers on from the target's",
                cure="give --target or --target-layers",
            )
        tail = module.name
    match spelling:
        case "regex" if module.head:
            return module.name
        case "regex":
            return rf"re:.*\b{re.escape(tail)}$"
        case "rule":
            return rf"-:.*\b{re.escape(tail)}$"
        case "name" if ".layers." in module.name and tail != module.name:
            return f"*.{tail}"
        case "part":
            return tail
        case _:
            return module.name


def _tail(module: Module) -> str:
    """The name without the number of its layer, which depends on the target in vLLM."""
    return re.sub(r"^model\.(layers\.\d+\.)?|^model\.midlayer\.(\d+\.)?", "", module.name)
