"""Computations of a plan: a float weight quantized, a stored one brought into another format or back to floats.

Each reads its weight in blocks of rows and hands over the bytes of all the tensors that it
becomes. What it holds at most is about the weight's quantized values, one byte each, and their packed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeAlias

import torch
from torch import Tensor

from draftconv.checkpoint import SIZES, TensorRef, nbytes, row_blocks
from draftconv.errors import Refused
from draftconv.quantization.backends import BLOCKS, Backend
from draftconv.quantization.deviation import Deviation, Sum
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.formats.base import Format, Weight
from draftconv.quantization.formats.modelopt_awq import fp8_scale
from draftconv.quantization.quantized_values import STORED
from draftconv.quantization.quantized_weights import QuantizedWeights
from draftconv.quantization.regroup import regroup, round_scales, same_values
from draftconv.quantization.rounding import RoundedWeight, dequantize, input_scale, peak, quantize
from draftconv.quantization.scheme import Scheme
from draftconv.reference.load import TORCH_DTYPES, to_torch

BLOCK = BLOCKS["native"]
"""Source bytes that a thread holds at a time."""

THREADS = 4

Bytes = dict[str, bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `start…stop` of a weight, which `read` reads."""

    start: int
    stop: int
    read: Callable[[], Tensor]


@dataclass(frozen=True, eq=False)
class RestoredWeight:
    """A stored weight as the floats that it stands for, rounded once to `dtype`, block of rows by block.

    It has what is asked of a `TensorRef`: name, dtype, shape and nbytes are those of the floats.
    """

    name: str
    stored: QuantizedWeights

    @property
    def module(self) -> str:
        return self.name.removesuffix(WEIGHT)

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shapes[self.module]

    @property
    def nbytes(self) -> int:
        return nbytes(self.dtype, self.shape)

    @property
    def parts(self) -> tuple[TensorRef, ...]:
        return tuple(self.stored.modules[self.module].values())

    def blocks(self, block: int) -> Iterator[Block]:
        """The rows in order, in blocks of at most `block` bytes (one row at least)."""
        weight, outputs = self.stored.load(self.module), self.shape[0]

        def read(start: int, stop: int) -> Tensor:
            part = replace(weight, quantized=weight.quantized.rows(start, stop))
            return floats(part).to(TORCH_DTYPES[self.dtype])

        step = max(1, block * outputs // max(1, self.nbytes))
        for start in range(0, outputs, step):
            stop = min(start + step, outputs)
            yield Block(start, stop, partial(read, start, stop))


Floats: TypeAlias = TensorRef | RestoredWeight
"""A weight that is to be rounded: plain in a file, or quantized there."""

Search: TypeAlias = Callable[[Mapping[str, Tensor], Scheme, Sequence[Tensor]], Tensor]
"""Name → [O, I], their scheme and inputs [N, I] that they share → what these inputs are to be multiplied by: [I]."""


@dataclass(frozen=True, eq=False, slots=True)
class SharedScales:
    """What was found of single weights, for those that they share a scale with: float32 [] each.

    Attributes:
        peaks: the largest magnitude. `widened`: what an INT4 weight is widened by to meet FP8 activations.
    """

    peaks: dict[Floats, Tensor] = field(default_factory=dict)
    widened: dict[Floats, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Smoothing:
    """What the inputs of some weights are multiplied by, and their columns divided by, before both are rounded (AWQ).

    Attributes:
        refs: every weight that reads these inputs, by canonical name: engines that join them take one factor.
        rows_NI: a sample of the inputs, and `peak_I`: the largest magnitudes of all of them; float32.
    """

    refs: Mapping[str, Floats]
    scheme: Scheme
    rows_NI: Tensor
    peak_I: Tensor
    search: Search

    @cached_property
    def factor_I(self) -> Tensor:
        """float32, with the values that a file holds: weights are divided by what inputs are really multiplied by."""
        weights = {name: torch.cat(list(rows(ref, BLOCK))) for name, ref in self.refs.items()}
        dtype = next(iter(weights.values())).dtype
        return self.search(weights, self.scheme, [self.rows_NI]).to(dtype).float()

    @property
    def input_scale(self) -> Tensor | None:
        """Of static activations, from the largest of all inputs once they are smoothed: float32 []."""
        inputs = self.scheme.inputs
        return None if inputs is None else input_scale((self.peak_I * self.factor_I).amax(), inputs)

    @property
    def memory(self) -> int:
        """Bytes that a search holds, about: ModelOpt makes copies of the weights in their dtype and in float32."""
        return 8 * sum(ref.nbytes for ref in self.refs.values())


@dataclass(frozen=True, eq=False)
class Quantize:
    """A float weight to the tensors of a format.

    Attributes:
        name: canonical, for messages and `deviations`, which is told how far the result is from the weight.
        fused: weights that share a scale for the whole with this one, itself among them.
        input_scale: float32 [], of static activations.
        smoothing: of its inputs; `input_scale` then follows from it.
        rounds: who rounds the rows, on `device`, and `block`: the source bytes of a call, on which a row's
            quantized values do not depend.
        shared: of each of `fused` alone, by whichever of them runs first, for all of them.
        chosen: canonical name → values that were chosen before, [O, I], under the scales that the rows get here.
    """

    name: str
    ref: Floats
    scheme: Scheme
    format: Format
    style: str | None
    fused: tuple[Floats, ...]
    deviations: dict[str, Deviation] = field(default_factory=dict)
    input_scale: Tensor | None = None
    rounds: Backend = quantize
    block: int = BLOCK
    device: str = "cpu"
    smoothing: Smoothing | None = None
    shared: SharedScales = field(default_factory=SharedScales)
    chosen: Callable[[str], Tensor] | None = None

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        every = (self.ref, *(ref for ref in self.fused if ref is not self.ref))
        return tuple(part for ref in every for part in (ref.parts if isinstance(ref, RestoredWeight) else (ref,)))

    @property
    def memory(self) -> int:
        searched = self.smoothing.memory if self.smoothing else 0
        return max(
            searched,
            4 * THREADS * self.block + (5 if isinstance(self.ref, RestoredWeight) else 3) * math.prod(self.ref.shape),
        )

    def run(self) -> Bytes:
        with _thread_pool() as pool:
            return self._run(pool)

    def _run(self, pool: ThreadPoolExecutor) -> Bytes:
        total, weights = Sum(), self.scheme.weights
        whole = self._shared_peak(pool) if weights.whole else None
        quantized = self._quantize(self.ref, whole, pool, total)
        self.deviations[self.name] = total.deviation()
        weight = Weight(
            quantized,
            self.ref.dtype,
            self.smoothing.input_scale if self.smoothing else self.input_scale,
            self.smoothing.factor_I if self.smoothing else None,
            fp8_scale=self._fp8_scale(quantized, whole, pool),
            granularity=weights.granularity,
        )
        return to_bytes(self.format.store(weight, self.style))

    def _shared_peak(self, pool: ThreadPoolExecutor) -> Tensor:
        """The largest magnitude of all that are multiplied together: float32 []."""
        peaks = self.shared.peaks
        for ref in self.fused:
            if ref not in peaks:
                peaks[ref] = _peak(ref, self.block, pool)
        return torch.stack([peaks[ref] for ref in self.fused]).amax().to(self.device)

    def _quantize(
        self, ref: Floats, whole: Tensor | None, pool: ThreadPoolExecutor, total: Sum | None = None
    ) -> RoundedWeight:
        weights = self.scheme.weights
        factor_I = self.smoothing.factor_I if self.smoothing else None
        qvalues_OI = torch.empty(ref.shape, dtype=STORED[weights.dtype])
        chosen_OI = None if self.chosen is None else self.chosen(self.name)

        def rounded(block: Block) -> tuple[RoundedWeight, Sum]:
            rows_BI, block_sum = block.read().to(self.device), Sum()
            smooth_BI = rows_BI if factor_I is None else rows_BI.float() * factor_I.reciprocal()
            part = self.rounds(smooth_BI, weights, whole=whole, name=self.name)
            if chosen_OI is not None:
                part = replace(part, qvalues=chosen_OI[block.start : block.stop].to(self.device))
            qvalues_OI[block.start : block.stop] = part.qvalues
            if total is not None:
                block_sum.add(rows_BI.float(), _scaled(dequantize(part), factor_I))
            return replace(part, qvalues=part.qvalues[:0], scale=part.scale.cpu()), block_sum

        parts = list(pool.map(rounded, blocks(ref, self.block)))
        if total is not None:
            for _, block_sum in parts:
                total.join(block_sum)
        scales = [part.scale for part, _ in parts]
        scale = scales[0] if weights.granularity == "tensor" else torch.cat(scales)
        return RoundedWeight(weights.dtype, qvalues_OI, scale, parts[0][0].unit.cpu())

    def _fp8_scale(self, quantized: RoundedWeight, whole: Tensor | None, pool: ThreadPoolExecutor) -> Tensor | None:
        """What int4 weights are widened by to meet FP8 activations: one for all that are multiplied together."""
        inputs = self.scheme.inputs
        if inputs is None or inputs.dynamic or self.scheme.weights.dtype != "int4":
            return None
        widened = self.shared.widened
        widened[self.ref] = fp8_scale(quantized)
        for ref in self.fused:
            if ref not in widened:
                widened[ref] = fp8_scale(self._quantize(ref, whole, pool))
        return torch.stack([widened[ref] for ref in self.fused]).amax()


@dataclass(frozen=True, eq=False)
class Repack:
    """A stored weight in another format: the same integers, the same scales, repeated or folded where grouped anew.

    Attributes:
        narrow: scales are stored in the dtype of the weight, rounded where it does not hold them.
        weight_only: calibrated scales of activations are left out.
    """

    name: str
    parts: Mapping[str, TensorRef]
    stored: QuantizedWeights
    format: Format
    style: str | None
    group: int | None
    narrow: bool = False
    weight_only: bool = False

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return tuple(self.parts.values())

    @property
    def memory(self) -> int:
        rows, columns = self.stored.shapes[self.name]
        return 4 * rows * columns  # quantized values, the same the other way round, and words of both formats

    def run(self) -> Bytes:
        return to_bytes(self.format.store(self.weight(), self.style))

    def outline(self) -> Weight:
        """As `weight`, without the quantized values: enough to plan with, and to refuse what its scales do not allow.

        Raises:
            Refused: its scales cannot be grouped or rounded so. BadCheckpoint: see `QuantizedWeights.outline`.
        """
        return self._regrouped(self._kept(self.stored.outline(self.name)))

    def weight(self) -> Weight:
        """The weight as the new format stores it.

        Raises:
            Refused: its scales cannot be grouped or rounded so, or it would stand for other values.
            BadCheckpoint: see `QuantizedWeights.load`.
        """
        weight = self._kept(self.stored.load(self.name))
        regrouped = self._regrouped(weight)
        if regrouped is not weight and not same_values(weight.quantized, regrouped.quantized):
            raise Refused(
                f"{self.name} would stand for other values under scales grouped by {self.group}",
                why="a repack promises the same weights, to the bit",
                cure="choose a format that holds the scales as they are, or --dequantize",
            )
        return regrouped

    def _kept(self, weight: Weight) -> Weight:
        weight = round_scales(weight, self.name) if self.narrow else weight
        return replace(weight, input_scale=None, fp8_scale=None) if self.weight_only else weight

    def _regrouped(self, weight: Weight) -> Weight:
        return weight if self.group == self.stored.group(weight) else regroup(weight, self.group)


@dataclass(frozen=True, eq=False)
class Dequantize:
    """A stored weight as floats: exactly what its quantized values stand for, rounded once to `dtype`."""

    name: str
    parts: Mapping[str, TensorRef]
    stored: QuantizedWeights
    dtype: str

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return tuple(self.parts.values())

    @property
    def memory(self) -> int:
        rows, columns = self.stored.shapes[self.name.removesuffix(WEIGHT)]
        return (3 + SIZES[self.dtype] // 8) * rows * columns  # words, quantized values, and the result

    def run(self) -> Bytes:
        weight = self.stored.load(self.name.removesuffix(WEIGHT))
        return to_bytes({"weight": floats(weight, TORCH_DTYPES[self.dtype])})


def floats(weight: Weight, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a weight stands for, [O, I]: exact in float32 for 16-bit scales of integer values, then rounded once."""
    if weight.pre_quant_scale is None:
        return dequantize(weight.quantized, dtype)
    return _scaled(dequantize(weight.quantized), weight.pre_quant_scale).to(dtype)


def _scaled(weight_OI: Tensor, factor_I: Tensor | None) -> Tensor:
    return weight_OI if factor_I is None else weight_OI * factor_I.float()


def to_bytes(tensors: Mapping[str, Tensor]) -> Bytes:
    """Tensors as safetensors stores them."""
    return {name: t.contiguous().reshape(-1).view(torch.uint8).numpy().data for name, t in tensors.items()}


def rows(ref: Floats, block: int) -> Iterator[Tensor]:
    """The rows of a float weight in order, in its dtype, in blocks of at most `block` bytes (one row at least)."""
    return (part.read() for part in blocks(ref, block))


def blocks(ref: Floats, block: int) -> Iterator[Block]:
    """What `rows` yields, to be read when it is wanted."""
    if isinstance(ref, RestoredWeight):
        yield from ref.blocks(block)
        return
    for start, stop in row_blocks(ref, block):
        yield Block(start, stop, partial(to_torch, ref.row_range(start, stop)))


def _peak(ref: Floats, block: int, pool: ThreadPoolExecutor) -> Tensor:
    return torch.stack(list(pool.map(lambda part: peak(part.read()), blocks(ref, block)))).amax()


@contextmanager
def _thread_pool() -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch would take, but at most `THREADS`, each of which does blocks of rows by itself.

    torch's own threads wait for each other after every operation. A block has hundreds of small
    ones, and beside other work on the machine each of those waits can be a long one. So until this
    is left, torch takes one thread here too.
    """
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(min(count, THREADS), "draftconv-rows", torch.set_num_threads, (1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(count)
