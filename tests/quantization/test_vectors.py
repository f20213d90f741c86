"""Bits that amd-quark and nvidia-modelopt wrote; where a checkout has no such vectors beside it, these tests skip."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from draftconv.quantization.pack_int32 import Order, pack, unpack
from draftconv.quantization.rounding import dequantize, quantize
from draftconv.quantization.scheme import WeightScheme
from tests.opening import shared

CHANNEL = WeightScheme("int4", "channel", "max/7.5", "weight")


def group(size: int) -> WeightScheme:
    return WeightScheme("int4", "group", "max/7.5", "weight", size)


def vector(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shared("vectors", f"{name}.json").read_text())
    return found


def bfloat(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("quark_0.13_int4_pc__quark_order", "order"),
        ("quark_0.13_int4_pc__quark_reorder", "reorder"),
        ("quark_0.11.1_int4_pc__quark_reorder", "reorder"),
    ],
)
def test_quark_per_channel(name: str, order: Order) -> None:
    row = vector(name)
    found = quantize(bfloat(row["weight_bf16_as_float"]), CHANNEL)
    words = torch.tensor(row["packed_int32"], dtype=torch.int32)
    assert found.qvalues.tolist() == row["unpacked_int4"]
    assert torch.equal(pack(found.qvalues, order), words)
    assert torch.equal(unpack(words, order), found.qvalues)
    assert found.scale.dtype == torch.bfloat16
    assert found.scale[:, 0].tolist() == row["weight_scale"]
    assert dequantize(found).tolist() == row["dequantized"]


def test_quark_per_group() -> None:
    row = vector("quark_0.13_int4_g32__quark_reorder")
    found = quantize(bfloat(row["weight_bf16_as_float"]), group(32))
    assert found.qvalues.tolist() == row["unpacked_int4"]
    assert found.scale.T.tolist() == row["weight_scale"]
    packed_along_outputs = pack(found.qvalues.T, "reorder")
    assert packed_along_outputs.tolist() == row["packed_int32"]


@pytest.mark.parametrize(
    ("name", "scheme"), [("quark_tiny_8x16_int4_per_channel", CHANNEL), ("quark_tiny_8x16_int4_group8", group(8))]
)
def test_quark_worked_example(name: str, scheme: WeightScheme) -> None:
    row = vector(name)
    found = quantize(bfloat(row["weight"]), scheme)
    packed = found.qvalues if scheme.group is None else found.qvalues.T
    assert found.qvalues.tolist() == row["int4"]
    assert found.scale.tolist() == row["scale"]
    assert pack(packed, "order").tolist() == row["packed_order"]
    assert pack(packed, "reorder").tolist() == row["packed_reorder"]
    assert dequantize(found).tolist() == row["dequantized"]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("INT4_BLOCKWISE_WEIGHT_ONLY_CFG", WeightScheme("int4", "group", "max/7", "F32", 32)),
        ("INT8_WEIGHT_ONLY_CFG", WeightScheme("int8", "channel", "max/127", "F32")),
        ("FP8_PER_CHANNEL_PER_TOKEN_CFG", WeightScheme("fp8", "channel", "max/448", "F32")),
        ("FP8_DEFAULT_CFG", WeightScheme("fp8", "tensor", "max/448", "F32")),
    ],
)
def test_modelopt(name: str, scheme: WeightScheme) -> None:
    row = vector(f"modelopt_{name}")
    weight = bfloat(row["weight"])
    scale = torch.tensor(row["weight_scale"])
    # The vector holds the first rows of a layer; a scale per tensor comes from all of them.
    found = quantize(weight, scheme, whole=scale * 448 if scheme.granularity == "tensor" else None)
    assert found.qvalues.float().tolist() == row["q"]
    assert torch.equal(found.scale.flatten(), scale.flatten()[: found.scale.numel()])


def test_a_wrong_rule_is_seen() -> None:
    row = vector("quark_0.13_int4_pc__quark_reorder")
    found = quantize(bfloat(row["weight_bf16_as_float"]), WeightScheme("int4", "channel", "max/7", "weight"))
    assert found.qvalues.tolist() != row["unpacked_int4"]
    assert pack(quantize(bfloat(row["weight_bf16_as_float"]), CHANNEL).qvalues, "order").tolist() != row["packed_int32"]
