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
from draftconv.checkpoint.dtypes import SIZES
from draftconv.errors import Refused
from draftconv.quantization.deviation import Deviation, Sum
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.formats.base import Format, Weight
from draftconv.quantization.formats.modelopt_awq import fp8_scale
from draftconv.quantization.grids import Quantized, dequantize, peak, quantize
from draftconv.quantization.reading import Stored
from draftconv.quantization.repack import regroup, round_scales, same_values
from draftconv.quantization.scheme import Scheme
from draftconv.reference.load import TORCH_DTYPES, to_torch

BLOCK = 1024 * 1024
"""Source bytes held at a time: few enough that a block and what is computed of it stay in a core's cache."""

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
        total, weights = Sum(), self.scheme.weights
        whole = torch.stack([_peak(ref) for ref in self.fused]).amax() if weights.whole else None
        quantized = self._quantized(self.ref, whole, total)
        self.deviations[self.name] = total.deviation()
        weight = Weight(
            quantized,
            self.ref.dtype,
            self.input_scale,
            fp8_scale=self._fp8_scale(quantized, whole),
            per=weights.per,
        )
        return to_bytes(self.format.store(weight, self.style))

    def _quantized(self, ref: TensorRef, whole: Tensor | None, total: Sum | None = None) -> Quantized:
        weights = self.scheme.weights
        codes_OI, scales, at = torch.empty(0), [], 0
        for rows_BI in _rows(ref):
            part = quantize(rows_BI, weights, whole=whole, name=self.name)
            if total is not None:
                total.add(rows_BI.float(), dequantize(part))
            if not at:
                codes_OI = part.codes.new_empty(ref.shape)
            codes_OI[at : at + len(rows_BI)] = part.codes
            at += len(rows_BI)
            scales.append(part.scale)
        scale = scales[0] if weights.per == "tensor" else torch.cat(scales)
        return replace(part, codes=codes_OI, scale=scale)

    def _fp8_scale(self, quantized: Quantized, whole: Tensor | None) -> Tensor | None:
        """What int4 weights are widened by to meet FP8 activations: one for all that are multiplied together."""
        inputs = self.scheme.inputs
        if inputs is None or inputs.dynamic or self.scheme.weights.grid != "int4":
            return None
        others = (self._quantized(ref, whole) for ref in self.fused if ref is not self.ref)
        return torch.stack([fp8_scale(each) for each in (quantized, *others)]).amax()


@dataclass(frozen=True, eq=False)
class Repack:
    """A stored weight in another format: the same integers, the same scales, repeated or folded where grouped anew.

    Attributes:
        rounded: the one thing that may change: scales are rounded to the dtype of the weight.
    """

    name: str
    parts: Mapping[str, TensorRef]
    stored: Stored
    format: Format
    style: str | None
    group: int | None
    rounded: bool = False

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return tuple(self.parts.values())

    @property
    def memory(self) -> int:
        rows, columns = self.stored.shapes[self.name]
        return 4 * rows * columns  # codes, the same the other way round, and words of both formats

    def run(self) -> Bytes:
        return to_bytes(self.format.store(self.weight(), self.style))

    def weight(self) -> Weight:
        """The weight as the new format stores it.

        Raises:
            Refused: its scales cannot be grouped or rounded so.
        """
        weight = self.stored.load(self.name)
        if self.rounded:
            weight = round_scales(weight, self.name)
        if self.group == self.stored.group(weight):
            return weight
        regrouped = regroup(weight, self.group)
        if not same_values(weight.quantized, regrouped.quantized):
            raise Refused(
                f"{self.name} would stand for other values under scales grouped by {self.group}",
                why="a repack promises the same weights, to the bit",
                cure="choose a format that holds the scales as they are, or --dequantize",
            )
        return regrouped


@dataclass(frozen=True, eq=False)
class Dequantize:
    """A stored weight as floats: exactly what its codes stand for, rounded once to `dtype`."""

    name: str
    parts: Mapping[str, TensorRef]
    stored: Stored
    dtype: str

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return tuple(self.parts.values())

    @property
    def memory(self) -> int:
        rows, columns = self.stored.shapes[self.name.removesuffix(WEIGHT)]
        return (3 + SIZES[self.dtype] // 8) * rows * columns  # words, codes, and the result

    def run(self) -> Bytes:
        weight = self.stored.load(self.name.removesuffix(WEIGHT))
        return to_bytes({"weight": floats(weight, TORCH_DTYPES[self.dtype])})


def floats(weight: Weight, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a weight stands for, [O, I]: exact in float32 for 16-bit scales of integer codes, then rounded once."""
    if weight.pre_quant_scale is None:
        return dequantize(weight.quantized, dtype)
    return (dequantize(weight.quantized) * weight.pre_quant_scale.float()).to(dtype)


def to_bytes(tensors: Mapping[str, Tensor]) -> Bytes:
    """Tensors as safetensors stores them."""
    return {name: t.contiguous().reshape(-1).view(torch.uint8).numpy().data for name, t in tensors.items()}


def _rows(ref: TensorRef) -> Iterator[Tensor]:
    for start, stop in row_blocks(ref, BLOCK):
        yield to_torch(ref.row_range(start, stop))


def _peak(ref: TensorRef) -> Tensor:
    return torch.stack([peak(rows_BI) for rows_BI in _rows(ref)]).amax()
