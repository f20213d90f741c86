"""The quantized weights of an opened drafter: what belongs to which module, and each of them in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.checkpoint import FLOATS, TensorRef, show, show_some
from draftconv.drafter.drafter import Drafter
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.format_detection import FormatMatch, headers
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.scheme import told_inputs
from draftconv.reference.load import to_torch

Parts = Mapping[str, TensorRef]

CODES = frozenset({"weight", "weight_packed", "qweight"})
"""Tensors that hold the quantized values of a weight; all the others together are a hundredth of their size."""


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """The quantized weights of a drafter, not yet read.

    Attributes:
        matches: canonical module (`layers.0.mlp.down_proj`) → how it is stored.
        modules: the same → its tensors by suffix. `shapes`: [O, I] of each.
        dtype: of the weights that they stand for, as safetensors spells it.
        findings: what is not as usual, for a person. `lies`: those of them that config.json says otherwise,
            and that whoever goes by it would stumble over.
        unlisted: modules that are plain, and that config.json does not exclude. Whether that is a fault
            differs from engine to engine: some build such a module quantized, others never do.
    """

    matches: Mapping[str, FormatMatch]
    modules: Mapping[str, Parts]
    shapes: Mapping[str, tuple[int, int]]
    dtype: str
    findings: tuple[str, ...] = ()
    lies: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def parts(self) -> Mapping[FormatMatch, tuple[str, ...]]:
        """Every way in which weights are stored, with the modules that are."""
        found: dict[FormatMatch, list[str]] = {}
        for module in self.modules:
            found.setdefault(self.matches[module], []).append(module)
        return {match: tuple(modules) for match, modules in found.items()}

    @property
    def only(self) -> FormatMatch:
        """How all of them are stored.

        Raises:
            Refused: they have several schemes.
        """
        match, *others = self.parts
        if others:
            raise Refused(
                f"these weights have {1 + len(others)} schemes: {self.title}",
                why="only weights of one scheme are packed anew: which formats hold all of them is not looked for",
                cure="add --unpack for those of all schemes but one, use --dequantize, or quantize again",
            )
        return match

    @property
    def title(self) -> str:
        """Format and granularity, for a person; of each part."""
        parts = self.parts
        if len(parts) == 1:
            return next(iter(parts)).title
        return "; ".join(f"{match.title}: {show_some(modules)}" for match, modules in parts.items())

    @property
    def activations(self) -> str:
        """What inputs are rounded to, in words."""
        return told_inputs({module: self.matches[module].declared.inputs for module in self.modules})

    def load(self, module: str) -> Weight:
        """One weight in memory.

        Raises:
            BadCheckpoint: its tensors do not fit each other, the drafter or what is declared.
        """
        return self._loaded(module, {suffix: read(ref) for suffix, ref in self.modules[module].items()})

    def outline(self, module: str) -> Weight:
        """As `load`, without the quantized values: they lie on torch's meta device, and not one of them is read.

        Raises:
            BadCheckpoint: as `load`, but for faults of the quantized values.
        """
        parts = self.modules[module]
        qvalues = headers({suffix: ref for suffix, ref in parts.items() if suffix in CODES})
        return self._loaded(module, qvalues | {suffix: read(parts[suffix]) for suffix in parts.keys() - qvalues.keys()})

    def _loaded(self, module: str, tensors: Mapping[str, Tensor]) -> Weight:
        match = self.matches[module]
        weight = match.format.load(tensors, match.declared, self.dtype)
        if (shape := tuple(weight.quantized.qvalues.shape)) != self.shapes[module]:
            raise BadCheckpoint(
                f"{show(module)} unpacks to {show(shape)}, the drafter needs {show(self.shapes[module])}",
                why=f"it was read as {match.format.title}, as quantization_config says",
                cure="quantization_config does not describe these tensors",
            )
        return weight

    def group(self, weight: Weight) -> int | None:
        """Inputs under one scale; None for one scale per row or for all."""
        inputs, scales = weight.quantized.qvalues.shape[1], weight.quantized.scale.shape[1]
        return None if scales == 1 else inputs // scales


def quantized_modules(drafter: Drafter) -> Iterator[tuple[str, Parts]]:
    """Modules that have anything but a plain float weight, each with all its tensors but the bias."""
    every = {**drafter.tensors, **drafter.qparams}
    modules: dict[str, dict[str, TensorRef]] = {}
    for name, ref in every.items():
        module, _, suffix = name.rpartition(".")
        modules.setdefault(module, {})[suffix] = ref
    for module, parts in modules.items():
        tensors = {suffix: ref for suffix, ref in parts.items() if suffix != "bias"}
        if module and tensors and (set(tensors) - {"weight"} or tensors["weight"].dtype not in FLOATS):
            yield module, tensors


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
