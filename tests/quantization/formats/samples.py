"""Small quantized weights, and whether two are the same to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from draftconv.quantization.formats.base import Declared, Format, Weight
from draftconv.quantization.formats.module_tensors import SPELLED, TORCH
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import (
    DTYPES,
    Granularity,
    InputScheme,
    ScaleDtype,
    ScaleRuleName,
    Scheme,
    WeightDtype,
    WeightScheme,
)
from tests.opening import shared

INT8_TOKEN = InputScheme("int8", "token", True)
FP8_TOKEN = InputScheme("fp8", "token", True)
FP8_TENSOR = InputScheme("fp8", "tensor", False)


def weight(
    weight_dtype: WeightDtype,
    group: int | None = None,
    *,
    rows: int = 16,
    inputs: int = 64,
    dtype: str = "BF16",
    scale: str | None = None,
    granularity: Granularity = "channel",
    static: bool = False,
    seed: int = 0,
) -> Weight:
    """Random values of the whole range under random scales; `scale` is their dtype where it is not the weight's."""
    chance = torch.Generator().manual_seed(seed)
    if weight_dtype == "fp8":
        bits = torch.randint(0, 254, (rows, inputs), generator=chance, dtype=torch.uint8)
        qvalues = (bits + (bits >= 127)).view(torch.float8_e4m3fn)  # every code but the NaN of either sign
    else:
        row = DTYPES[weight_dtype]
        qvalues = torch.randint(int(row.low), int(row.high) + 1, (rows, inputs), generator=chance, dtype=torch.int8)
    shape = (1, 1) if granularity == "tensor" else (rows, inputs // (group or inputs))
    scales = (0.001 + torch.rand(shape, generator=chance)).to(TORCH[scale or dtype])
    unit = torch.ones(())
    return Weight(
        RoundedWeight(weight_dtype, qvalues, scales, unit),
        dtype,
        torch.rand((), generator=chance) + 0.01 if static else None,
    )


def scheme(
    dtype: WeightDtype,
    group: int | None = None,
    *,
    granularity: Granularity | None = None,
    inputs: InputScheme | None = None,
    scale_dtype: ScaleDtype = "weight",
) -> Scheme:
    rules: dict[WeightDtype, ScaleRuleName] = {"int4": "mse", "int8": "mse", "fp8": "max/448"}
    way: Granularity = granularity or ("group" if group else "channel")
    return Scheme(WeightScheme(dtype, way, rules[dtype], scale_dtype, group), inputs)


def declared(
    dtype: WeightDtype,
    group: int | None = None,
    *,
    granularity: Granularity | None = None,
    inputs: InputScheme | None = None,
) -> Declared:
    return Declared(dtype, granularity or ("group" if group else "channel"), group, inputs)


def bits(tensor: Tensor) -> tuple[object, ...]:
    """Dtype, shape and bytes: NaN and signed zeros count."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), bytes(flat.tolist())


def same(a: Weight, b: Weight) -> bool:
    def known(one: Weight) -> tuple[object, ...]:
        kept = one.quantized
        optional = [None if t is None else bits(t) for t in (one.input_scale, one.pre_quant_scale)]
        return kept.dtype, bits(kept.qvalues), bits(kept.scale), bits(kept.unit), one.dtype, *optional

    return known(a) == known(b)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return {name: bits(tensor) for name, tensor in a.items()} == {name: bits(tensor) for name, tensor in b.items()}


def foretold(
    format: Format, shape: tuple[int, int], plan: Scheme, dtype: str
) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(part.suffix, part.dtype, part.shape) for part in format.parts(shape, plan, dtype)]


def found(tensors: dict[str, Tensor]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(suffix, SPELLED[tensor.dtype], tuple(tensor.shape)) for suffix, tensor in tensors.items()]


def vector(name: str) -> dict[str, Any]:
    """Bytes that a package wrote; the test is skipped where they are not at hand."""
    read: dict[str, Any] = json.loads(shared("vectors", f"{name}.json").read_text())
    return read


def tensors_of(row: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a compressed-tensors vector, in the dtypes that it tells."""
    return {
        suffix: torch.tensor(values, dtype=getattr(torch, row["stored"][suffix][0]))
        for suffix, values in row["tensors"].items()
    }


def with_(one: Weight, **changes: Any) -> Weight:
    return replace(one, **changes)


def spoilt(config: Mapping[str, object], draw: Callable[[Any], Any], values: Any) -> dict[str, object]:
    """A copy of a JSON object in which one value, at any depth, is another."""
    key = draw(st.sampled_from(sorted(config)))
    inner = config[key]
    if isinstance(inner, dict) and inner and draw(st.integers(0, 3)):
        return {**config, key: spoilt(inner, draw, values)}
    return {**config, key: draw(values)}


def with_scale(one: Weight, scale: Tensor) -> RoundedWeight:
    return replace(one.quantized, scale=scale)


def with_style(one: Declared, style: str) -> Declared:
    return replace(one, style=style)
