"""Quantized weights to store, and what real programs stored."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from draftconv.quantization.formats.base import StoredTensor, Weight
from draftconv.quantization.formats.module_tensors import SPELLED, TORCH
from draftconv.quantization.quantized_values import STORED
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import Scheme
from tests.opening import shared


def random_weight(scheme: Scheme, shape: tuple[int, int], dtype: str, seed: int = 0) -> Weight:
    """Codes of the whole weight_dtype, no two scales alike: whatever is swapped, shows."""
    generator = torch.Generator().manual_seed(seed)
    weight_dtype, granularity, group = scheme.weights.dtype, scheme.weights.granularity, scheme.weights.group
    outputs, inputs = shape
    if weight_dtype == "fp8":
        qvalues = (torch.rand(shape, generator=generator) * 896 - 448).to(torch.float8_e4m3fn)
    else:
        low, high = (0, 16) if STORED[weight_dtype] == torch.uint8 else (-8, 8)
        qvalues = torch.randint(low, high, shape, generator=generator).to(STORED[weight_dtype])
    groups = (1, 1) if granularity == "tensor" else (outputs, inputs // (group or inputs))
    unit = torch.ones(())
    match scheme.weights.scale_dtype:
        case "E8M0":
            scale = torch.randint(90, 130, groups, generator=generator).to(torch.uint8)
        case "F8_E4M3":
            scale = (torch.rand(groups, generator=generator) + 0.1).to(torch.float8_e4m3fn)
            unit = torch.rand((), generator=generator) + 0.1
        case kept:
            scale = (torch.rand(groups, generator=generator) + 0.1).to(TORCH["F32" if kept == "F32" else dtype])
    static = scheme.inputs is not None and not scheme.inputs.dynamic
    input_scale = torch.rand((), generator=generator) + 0.1 if static else None
    return Weight(RoundedWeight(weight_dtype, qvalues, scale, unit), dtype, input_scale, granularity=granularity)


def bits(tensor: Tensor | None) -> object:
    """A tensor as something that compares by dtype, shape and every bit."""
    if tensor is None:
        return None
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def same(one: Weight, other: Weight) -> bool:
    """Equal in every bit; an FP8 scale that is left to the format aside."""
    tensors = [
        [bits(t) for t in (w.quantized.qvalues, w.quantized.scale, w.quantized.unit, w.input_scale, w.pre_quant_scale)]
        for w in (one, other)
    ]
    return (one.quantized.dtype, one.dtype, tensors[0]) == (other.quantized.dtype, other.dtype, tensors[1])


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """The same tensors, bit for bit."""
    return {k: bits(v) for k, v in one.items()} == {k: bits(v) for k, v in other.items()}


def described(stored: dict[str, Tensor]) -> set[StoredTensor]:
    """Stored tensors as `Format.parts` foretells them."""
    return {StoredTensor(suffix, SPELLED[tensor.dtype], tuple(tensor.shape)) for suffix, tensor in stored.items()}


def vector(name: str) -> dict[str, Any]:
    """Bytes that a real program wrote; the test is skipped where a checkout has none."""
    found: dict[str, Any] = json.loads(shared("vectors", f"{name}.json").read_text())
    return found
