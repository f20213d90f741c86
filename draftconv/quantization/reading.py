"""The quantized weights of an opened drafter: which format they are in, and what belongs to which module.

config.json says which format; the tensors say which modules are quantized, and each format goes
by them where they tell more of scales and packing than config.json does (`Format.resolve`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.checkpoint import FLOATS, TensorRef, show, show_some
from draftconv.drafter.config import Config
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.tensors import expected
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Declared, Format, Weight
from draftconv.reference.load import to_torch

Parts = Mapping[str, TensorRef]


@dataclass(frozen=True, slots=True)
class Stored:
    """The quantized weights of a drafter, not yet read.

    Attributes:
        modules: canonical module (`layers.0.mlp.down_proj`) → its tensors by suffix. `shapes`: [O, I] of each.
        dtype: of the weights that they stand for, as safetensors spells it.
    """

    format: Format
    declared: Declared
    modules: Mapping[str, Parts]
    shapes: Mapping[str, tuple[int, int]]
    dtype: str

    def load(self, module: str) -> Weight:
        """One weight in memory.

        Raises:
            BadCheckpoint: its tensors do not fit each other, the drafter or what is declared.
        """
        parts = {suffix: read(ref) for suffix, ref in self.modules[module].items()}
        weight = self.format.load(parts, self.declared, self.dtype)
        if (found := tuple(weight.quantized.codes.shape)) != self.shapes[module]:
            raise BadCheckpoint(
                f"{show(module)} unpacks to {show(found)}, the drafter needs {show(self.shapes[module])}",
                why=f"it was read as {self.format.title}, as quantization_config says",
                cure="quantization_config does not describe these tensors",
            )
        return weight

    def group(self, weight: Weight) -> int | None:
        """Inputs under one scale; None for one scale per row or for all."""
        inputs, scales = weight.quantized.codes.shape[1], weight.quantized.scale.shape[1]
        return None if scales == 1 else inputs // scales


def find_stored(drafter: Drafter) -> Stored:
    """How the weights of a quantized drafter are stored.

    Raises:
        Refused: no format that draftconv reads fits what config.json declares, or the variant is not known.
        BadCheckpoint: config.json contradicts itself, or a quantized module is no part of the drafter.
    """
    modules = dict(quantized_modules(drafter))
    checkpoint = drafter.checkpoint
    config = Config(drafter.config)
    section = config.section("quantization_config").data or config.section("compression_config").data
    for form in formats().values():
        declared = form.read(section, checkpoint.sidecars)
        if declared is not None:
            return Stored(form, declared, modules, _shapes(drafter, modules), _dtype(drafter))
    raise Refused(
        f"draftconv cannot read weights that are {drafter.facts.quantization}",
        why=f"the tensors of one module are {show_some(sorted(next(iter(modules.values()), {})), 6)}",
        cure=f"formats that it reads: {', '.join(formats())}",
    )


def quantized_modules(drafter: Drafter) -> Iterator[tuple[str, Parts]]:
    """Modules that have anything but a plain float weight, each with all its tensors but the bias."""
    every = {**drafter.tensors, **drafter.companions}
    modules: dict[str, dict[str, TensorRef]] = {}
    for name, ref in every.items():
        module, _, suffix = name.rpartition(".")
        modules.setdefault(module, {})[suffix] = ref
    for module, parts in modules.items():
        kept = {suffix: ref for suffix, ref in parts.items() if suffix != "bias"}
        if kept and module and (set(kept) - {"weight"} or kept["weight"].dtype not in FLOATS):
            yield module, kept


def _shapes(drafter: Drafter, modules: Iterable[str]) -> dict[str, tuple[int, int]]:
    wanted = expected(drafter.facts)
    shapes = {}
    for module in modules:
        found = wanted.get(f"{module}{WEIGHT}")
        if found is None or len(found.shape) != 2:
            raise BadCheckpoint(
                f"{show(module)} has tensors of a quantized weight, and this drafter has no such weight",
                why="what they are multiplied with cannot be told",
                cure="export the drafter again; `draftconv inspect` lists its tensors",
            )
        outputs, inputs = found.shape
        shapes[module] = (outputs, inputs)
    return shapes


def _dtype(drafter: Drafter) -> str:
    """The dtype that the quantized weights had: that of the layer norms beside them."""
    norms = [ref.dtype for name, ref in drafter.tensors.items() if name.startswith("layers.") and "norm" in name]
    floats = [dtype for dtype in norms if dtype in FLOATS]
    return floats[0] if floats else "BF16"


INTEGERS: Mapping[str, torch.dtype] = {
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
}
"""Dtypes that only quantized weights have."""


def read(ref: TensorRef) -> Tensor:
    """Any tensor of a stored weight, in its own dtype and shape."""
    if ref.dtype not in INTEGERS:
        return to_torch(ref)
    if not ref.nbytes:
        return torch.empty(ref.shape, dtype=INTEGERS[ref.dtype])
    return torch.frombuffer(bytearray(ref.read()), dtype=INTEGERS[ref.dtype]).reshape(ref.shape)
