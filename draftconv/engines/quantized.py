"""Where the modules that an engine builds and the tensors that a file holds disagree.

`draftconv.engines.matching` tells what is built; the tensors tell what is stored. A plain
tensor in a quantized module, or the reverse, stops one loader, is cast without a word by
another and dropped by a third: each engine's rules say which.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.engines.base import Check, Reading
from draftconv.engines.checks import listed
from draftconv.engines.matching import Built, built
from draftconv.engines.modules import Module
from draftconv.engines.registry import ENGINES

Storage = Literal["plain", "bytes", "words", "packed"]
"""How a weight lies in the file: floats; 8-bit codes in the shape of the floats; codes of another shape under
the same name `weight`; codes under a name of their own (`weight_packed`, `qweight`)."""

Kind = Literal["not excluded", "excluded", "torn", "stops", "unknown"]

_BYTES = frozenset({"I8", "F8_E4M3", "F8_E5M2"})
_LAYER = re.compile(r"layers[.\\]+\d")


@dataclass(frozen=True, slots=True)
class Clash:
    """One module in which the two disagree.

    Attributes:
        kind: `not excluded`: stored plain, built quantized; `excluded`: stored quantized, built plain;
            `torn`: stored partly so and partly so; `stops` and `unknown`: as in `Built`.
        storage: of the quantized weights that are at stake: the module's own, or the drafter's if it has none.
    """

    module: Module
    kind: Kind
    storage: Storage
    because: str

    def __str__(self) -> str:
        return f"{self.module.name} ({self.because})"


def clashes(reading: Reading) -> tuple[Clash, ...]:
    """Every module whose tensors are not what the engine builds, by the names that it matches.

    None where those names depend on a target that is not given (`numbered_names`).
    """
    if ENGINES[reading.spec.name].names.counted_on and numbered_names(reading):
        return ()
    layers = reading.target.layers if reading.target else None
    section = reading.config.section("quantization_config").data
    view = reading.view
    found = built(reading.spec, section, view.sidecars, reading.built, layers, view.tensors)
    common = _common(reading)
    found |= dict.fromkeys(
        _unasked(reading, found) if found else (), Built("plain", "it never asks for a quantization")
    )
    return tuple(clash for module, made in found.items() for clash in _clash(reading, module, made, common))


def _unasked(reading: Reading, asked: Collection[Module]) -> Iterator[Module]:
    """Modules that are built plain whatever a list says: tables, norms, the head of vLLM's MLA class."""
    parts = {part for module in asked for part in module.parts}
    told = ENGINES[reading.spec.name].names.apart
    for name in (name.removesuffix(".weight") for name in reading.wanted if name.endswith(".weight")):
        if name not in parts and name not in told and f"{name}.weight" not in reading.replaced:
            yield Module(name, "", (name,))


def _clash(reading: Reading, module: Module, made: Built, common: Storage) -> Iterator[Clash]:
    stored = {storage for part in module.parts if (storage := _storage(reading, part)) is not None}
    codes = sorted(stored - {"plain"})
    own = codes[0] if codes else common
    if not stored:
        return
    if made.outcome in ("stops", "unknown"):
        yield Clash(module, made.outcome, own, made.because)
    elif "plain" in stored and codes:
        yield Clash(module, "torn", own, "only some of the projections that are joined here are quantized")
    elif made.outcome == "quantized" and not codes:
        yield Clash(module, "not excluded", own, made.because)
    elif made.outcome == "plain" and codes:
        yield Clash(module, "excluded", own, made.because)


def _storage(reading: Reading, part: str) -> Storage | None:
    """How one canonical weight is stored; None when the engine finds no tensor for it."""
    name = f"{part}.weight"
    if name in reading.fates.packed:
        return "packed"
    found = reading.tensor(name)
    if found is None:
        return None
    return "plain" if found.dtype in FLOATS else "bytes" if found.dtype in _BYTES else "words"


def _common(reading: Reading) -> Storage:
    """How the drafter's quantized weights are stored; `packed` when it has none."""
    if reading.fates.packed:
        return "packed"
    names = (name.removesuffix(".weight") for name in reading.fates.loaded if name.endswith(".weight"))
    stored = {_storage(reading, name) for name in names}
    return "bytes" if "bytes" in stored else "words" if "words" in stored else "packed"


def clash(kind: Kind, *storages: Storage) -> Check:
    """A check for clashes of one kind, in weights stored in one of these ways; in any if none is given."""

    def check(reading: Reading) -> str | None:
        return listed([
            str(found) for found in clashes(reading)
            if found.kind == kind and (not storages or found.storage in storages)
        ])  # fmt: skip

    return check


def numbered_names(reading: Reading) -> str | None:
    """Lists that number layers, where the names depend on a target that is not given (`Names.counted_on`)."""
    if reading.target is not None:
        return None
    section = reading.config.section("quantization_config").data
    entries = (entry for entry in _texts(section) if _LAYER.search(entry) and "layers.0." not in entry)
    first = next(entries, None)
    return f"{first}; give --target" if first and reading.truth.quantization else None


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
