"""Computations of a plan: a float weight quantized, a stored one brought into another format or back to floats.

Each reads its weight in blocks of rows and hands over the bytes of all the tensors that it
becomes. What it holds at most is about the weight's codes, one byte each, and their packed form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef, row_blocks
from draftconv.quantization.deviation import Deviation, Sum
from draftconv.quantization.formats.base import Declared, Format, Weight
from draftconv.quantization.formats.modelopt_awq import fp8_scale
from draftconv.quantization.grids import Quantized, dequantize, peak, quantize
from draftconv.quantization.repack import regroup
from draftconv.quantization.scheme import Scheme
from draftconv.reference.load import TORCH_DTYPES, to_torch

BLOCK = 16 * 1024 * 1024
"""Source bytes held at a time."""

Bytes = dict[str, bytes | memoryview]


@dataclass(frozen=True, eq=False)
class Quantize:
    """A float weight to the tensors of a format.

    Attributes:
        name: canonical, for messages and `deviations`, which is told how far the result is from the weight.
        fused: weights that share a scale for the whole with this one, itself among them.
        input_scale: float32 [], of static activations.
    """

    name: str
    ref: TensorRef
    scheme: Scheme
    format: Format
    style: str | None
    fused: tuple[TensorRef, ...]
    deviations: dict[str, Deviation] = field(default_factory=dict)
    input_scale: Tensor | None = None

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return (self.ref, *(ref for ref in self.fused if ref is not self.ref))

    @property
    def memory(self) -> int:
        return 4 * BLOCK + 3 * self.ref.shape[0] * self.ref.shape[1]

    def run(self) -> Bytes:
        total = Sum()
        quantized = self._quantized(self.ref, total)
        self.deviations[self.name] = total.deviation()
        weight = Weight(quantized, self.ref.dtype, self.input_scale, fp8_scale=self._fp8_scale(quantized))
        return to_bytes(self.format.store(weight, self.style))

    def _quantized(self, ref: TensorRef, total: Sum | None = None) -> Quantized:
        weights = self.scheme.weights
        whole = torch.stack([_peak(other) for other in self.fused]).amax() if weights.whole else None
        parts = []
        for rows_BI in _rows(ref):
            part = quantize(rows_BI, weights, whole=whole, name=self.name)
            if total is not None:
                total.add(rows_BI.float(), dequantize(part))
            parts.append(part)
        return replace(
            parts[0],
            codes=torch.cat([part.codes for part in parts]),
            scale=parts[0].scale if weights.per == "tensor" else torch.cat([part.scale for part in parts]),
        )

    def _fp8_scale(self, quantized: Quantized) -> Tensor | None:
        """What int4 weights are widened by to meet FP8 activations: one for all that are multiplied together."""
        inputs = self.scheme.inputs
        if inputs is None or inputs.dynamic or self.scheme.weights.grid != "int4":
            return None
        others = (self._quantized(ref) for ref in self.fused if ref is not self.ref)
        return torch.stack([fp8_scale(each) for each in (quantized, *others)]).amax()


@dataclass(frozen=True, eq=False)
class Repack:
    """A stored weight in another format: the same integers, the same scales, repeated or folded where grouped anew."""

    name: str
    parts: Mapping[str, TensorRef]
    found: Format
    declared: Declared
    dtype: str
    format: Format
    style: str | None
    group: int | None

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return tuple(self.parts.values())

    @property
    def memory(self) -> int:
        return 12 * sum(ref.nbytes for ref in self.parts.values())

    def run(self) -> Bytes:
        return to_bytes(self.format.store(self.weight(), self.style))

    def weight(self) -> Weight:
        """The weight as the new format stores it."""
        weight = load(self.parts, self.found, self.declared, self.dtype)
        return weight if self.group == _group(weight) else regroup(weight, self.group)


@dataclass(frozen=True, eq=False)
class Dequantize:
    """A stored weight as floats: exactly what its codes stand for, rounded once to `dtype`."""

    name: str
    parts: Mapping[str, TensorRef]
    found: Format
    declared: Declared
    dtype: str

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return tuple(self.parts.values())

    @property
    def memory(self) -> int:
        return 20 * sum(ref.nbytes for ref in self.parts.values())

    def run(self) -> Bytes:
        return to_bytes({"weight": self.tensor()})

    def tensor(self) -> Tensor:
        """The weight [O, I]."""
        return floats(load(self.parts, self.found, self.declared, self.dtype))


def load(parts: Mapping[str, TensorRef], found: Format, declared: Declared, dtype: str) -> Weight:
    """A stored weight in memory."""
    return found.load({suffix: read(ref) for suffix, ref in parts.items()}, declared, dtype)


def floats(weight: Weight) -> Tensor:
    """What a weight stands for, in the dtype of the weight that was quantized: [O, I]."""
    values_OI = dequantize(weight.quantized)
    if weight.pre_quant_scale is not None:
        values_OI = values_OI * weight.pre_quant_scale.float()
    return values_OI.to(TORCH_DTYPES[weight.dtype])


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


def to_bytes(tensors: Mapping[str, Tensor]) -> Bytes:
    """Tensors as safetensors stores them."""
    return {name: t.contiguous().reshape(-1).view(torch.uint8).numpy().data for name, t in tensors.items()}


def _group(weight: Weight) -> int | None:
    """Inputs under one scale; None for one scale per row or tensor."""
    inputs, scales = weight.quantized.codes.shape[1], weight.quantized.scale.shape[1]
    return None if scales == 1 else inputs // scales


def _rows(ref: TensorRef) -> Iterator[Tensor]:
    for start, stop in row_blocks(ref, BLOCK):
        yield to_torch(ref.row_range(start, stop))


def _peak(ref: TensorRef) -> Tensor:
    return torch.stack([peak(rows_BI) for rows_BI in _rows(ref)]).amax()
