"""Where the modules that an engine builds and the tensors that a file holds disagree.

`draftconv.engines.quantized_modules` tells what is built; the tensors tell what is stored. A plain
tensor in a quantized module, or the reverse, stops one loader, is cast without a word by
another and dropped by a third: each engine's rules say which.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.engines.checks import listed
from draftconv.engines.module_names import Module
from draftconv.engines.quantized_modules import BuiltModule, built
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import Check, SimulatedLoad

Storage = Literal["plain", "bytes", "words", "packed"]
"""How a weight lies in the file: floats; 8-bit values in the shape of the floats; values of another shape under
the same name `weight`; values under a name of their own (`weight_packed`, `qweight`)."""

Kind = Literal["not excluded", "excluded", "torn", "stops", "unknown"]

_BYTES = frozenset({"I8", "F8_E4M3", "F8_E5M2"})
_LAYER = re.compile(r"layers[.\\]+\d")


@dataclass(frozen=True, slots=True)
class QuantizationMismatch:
    """One module in which the two disagree.

    Attributes:
        kind: `not excluded`: stored plain, built quantized; `excluded`: stored quantized, built plain;
            `torn`: stored partly so and partly so; `stops` and `unknown`: as in `BuiltModule`.
        storage: of the quantized weights that are at stake: the module's own, or the drafter's if it has none.
    """

    module: Module
    kind: Kind
    storage: Storage
    because: str

    def __str__(self) -> str:
        return f"{self.module.name} ({self.because})"


def mismatches(load: SimulatedLoad) -> tuple[QuantizationMismatch, ...]:
    """Every module whose tensors are not what the engine builds, by the names that it matches.

    None where those names depend on a target that is not given (`numbered_names`).
    """
    if ENGINES[load.spec.name].names.counted_on and numbered_names(load):
        return ()
    layers = load.target.layers if load.target else None
    section = load.config.section("quantization_config").data
    view = load.view
    built_modules = built(load.spec, section, view.sidecars, load.built, layers, view.tensors)
    common = _common(load)
    built_modules |= dict.fromkeys(
        _never_quantized(load, built_modules) if built_modules else (),
        BuiltModule("plain", "it never asks for a quantization"),
    )
    return tuple(
        mismatch
        for module, built_module in built_modules.items()
        for mismatch in _mismatch(load, module, built_module, common)
    )


def _never_quantized(load: SimulatedLoad, matched: Collection[Module]) -> Iterator[Module]:
    """Modules that are built plain whatever a list says: tables, norms, the head of vLLM's MLA class."""
    parts = {part for module in matched for part in module.parts}
    apart = ENGINES[load.spec.name].names.apart
    for name in (name.removesuffix(".weight") for name in load.expected_tensors if name.endswith(".weight")):
        if name not in parts and name not in apart and f"{name}.weight" not in load.replaced:
            yield Module(name, "", (name,))


def _mismatch(
    load: SimulatedLoad, module: Module, built_module: BuiltModule, common: Storage
) -> Iterator[QuantizationMismatch]:
    stored = {storage for part in module.parts if (storage := _storage(load, part)) is not None}
    codes = sorted(stored - {"plain"})
    own = codes[0] if codes else common
    if not stored:
        return
    if built_module.outcome in ("stops", "unknown"):
        yield QuantizationMismatch(module, built_module.outcome, own, built_module.because)
    elif "plain" in stored and codes:
        yield QuantizationMismatch(
            module, "torn", own, "only some of the projections that are joined here are quantized"
        )
    elif built_module.outcome == "quantized" and not codes:
        yield QuantizationMismatch(module, "not excluded", own, built_module.because)
    elif built_module.outcome == "plain" and codes:
        yield QuantizationMismatch(module, "excluded", own, built_module.because)


def _storage(load: SimulatedLoad, part: str) -> Storage | None:
    """How one canonical weight is stored; None when the engine finds no tensor for it."""
    name = f"{part}.weight"
    if name in load.results.packed:
        return "packed"
    tensor = load.tensor(name)
    if tensor is None:
        return None
    return "plain" if tensor.dtype in FLOATS else "bytes" if tensor.dtype in _BYTES else "words"


def _common(load: SimulatedLoad) -> Storage:
    """How the drafter's quantized weights are stored; `packed` when it has none."""
    if load.results.packed:
        return "packed"
    names = (name.removesuffix(".weight") for name in load.results.loaded if name.endswith(".weight"))
    stored = {_storage(load, name) for name in names}
    return "bytes" if "bytes" in stored else "words" if "words" in stored else "packed"


def mismatch(kind: Kind, *storages: Storage) -> Check:
    """A check for clashes of one kind, in weights stored in one of these ways; in any if none is given."""

    def check(load: SimulatedLoad) -> str | None:
        return listed([
            str(clash) for clash in mismatches(load)
            if clash.kind == kind and (not storages or clash.storage in storages)
        ])  # fmt: skip

    return check


def numbered_names(load: SimulatedLoad) -> str | None:
    """Lists that number layers, where the names depend on a target that is not given (`ModuleNames.counted_on`)."""
    if load.target is not None:
        return None
    section = load.config.section("quantization_config").data
    entries = (entry for entry in _texts(section) if _LAYER.search(entry) and "layers.0." not in entry)
    first = next(entries, None)
    return f"{first}; give --target" if first and load.truth.quantization else None


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield from _texts(key)
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)
