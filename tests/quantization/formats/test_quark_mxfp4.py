"""Quark MXFP4 against plain Python and against what its config says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.formats.base import Declared
from draftconv.quantization.formats.quark_mxfp4 import QUARK_MXFP4
from draftconv.quantization.rounding import dequantize, quantize
from draftconv.quantization.scheme import InputScheme, Scheme, WeightScheme
from tests.quantization import plain
from tests.quantization.formats.weights import random_weight

STATIC = InputScheme("fp8", "tensor", False)
SCHEME = Scheme(WeightScheme("mxfp4", "group", "max/3.5", "E8M0", 32), STATIC)
DECLARED = Declared("mxfp4", "group", 32, STATIC, ("lm_head",), "reorder")


def test_two_neighbouring_inputs_share_a_byte() -> None:
    weight = random_weight(SCHEME, (4, 64), "BF16")
    stored = QUARK_MXFP4.store(weight)
    assert stored["weight"].tolist() == [
        [low | high << 4 for low, high in zip(row[::2], row[1::2], strict=True)]
        for row in weight.quantized.qvalues.tolist()
    ]
    assert torch.equal(stored["weight_scale"], weight.quantized.scale)


def test_a_quantized_weight_as_plain_python_has_it() -> None:
    torch.manual_seed(0)
    float_weight = torch.randn(2, 64)
    weight = random_weight(SCHEME, (2, 64), "F32")
    weight = type(weight)(quantize(float_weight, SCHEME.weights), "F32", weight.input_scale)
    stored = QUARK_MXFP4.store(weight)
    for row, packed, exponents in zip(
        float_weight.tolist(), stored["weight"].tolist(), stored["weight_scale"].tolist(), strict=True
    ):
        for at, biased in zip((0, 32), exponents, strict=True):
            values, exponent = plain.mxfp4(row[at : at + 32])
            assert biased == exponent + 127
            nibbles = [packed[i // 2] >> 4 * (i % 2) & 0xF for i in range(at, at + 32)]
            assert [plain.E2M1[n & 7] * (-1 if n & 8 else 1) for n in nibbles] == values


def test_an_input_scale_of_sixteen_bits_is_read() -> None:
    weight = random_weight(SCHEME, (4, 64), "BF16")
    stored = QUARK_MXFP4.store(weight) | {"input_scale": torch.tensor(0.5, dtype=torch.bfloat16)}
    found = QUARK_MXFP4.load(stored, DECLARED, "BF16")
    assert found.input_scale is not None
    assert (found.input_scale.dtype, found.input_scale.item()) == (torch.float32, 0.5)
    assert torch.equal(dequantize(found.quantized), dequantize(weight.quantized))


def test_a_scale_that_is_no_number() -> None:
    stored = QUARK_MXFP4.store(random_weight(SCHEME, (4, 64), "BF16"))
    stored["weight_scale"][1, 1] = 255
    with pytest.raises(BadCheckpoint, match="exponent 255"):
        QUARK_MXFP4.load(stored, DECLARED, "BF16")


def test_inputs_come_by_thirty_two() -> None:
    with pytest.raises(Refused, match="48 inputs are no multiple of 32"):
        QUARK_MXFP4.parts((4, 48), SCHEME, "BF16")
    with pytest.raises(BadCheckpoint, match="weight has 48 inputs"):
        QUARK_MXFP4.load({"weight": torch.zeros(4, 24, dtype=torch.uint8)}, DECLARED, "BF16")


def config() -> dict[str, Any]:
    found: Any = QUARK_MXFP4.declare(DECLARED, ()).config
    return dict(found)


def test_the_config_says_what_quark_s_says() -> None:
    """Literal of what amd-quark 0.13 exports for its scheme mxfp4_fp8; `scale_type` of activations is ours."""
    whole = config()["global_quant_config"]
    assert whole["weight"] == {
        "block_size": None, "ch_axis": -1, "dtype": "fp4", "enable_buffer_reuse": False, "group_size": 32,
        "is_dynamic": False, "is_scale_quant": False, "max_input_numel": 4194304, "mx_element_dtype": None,
        "observer_cls": "PerBlockMXObserver", "qscheme": "per_group", "round_method": "half_even",
        "scale_calculation_mode": "even", "scale_format": "e8m0", "scale_type": "float", "symmetric": None,
        "zero_point_type": "int32",
    }  # fmt: skip
    assert whole["input_tensors"] == {
        "block_size": None, "ch_axis": None, "dtype": "fp8_e4m3", "enable_buffer_reuse": False, "group_size": None,
        "is_dynamic": False, "is_scale_quant": False, "max_input_numel": 4194304, "mx_element_dtype": None,
        "observer_cls": "PerTensorMinMaxObserver", "qscheme": "per_tensor", "round_method": "half_even",
        "scale_calculation_mode": None, "scale_format": None, "scale_type": "float32", "symmetric": True,
        "zero_point_type": "int32",
    }  # fmt: skip


def test_other_groups_and_activations_are_refused() -> None:
    found = config()
    found["global_quant_config"]["weight"]["group_size"] = 16
    with pytest.raises(Refused, match="group_size 16"):
        QUARK_MXFP4.read(found, {})
    found = config()
    found["global_quant_config"]["input_tensors"] = None
    with pytest.raises(Refused, match="input_tensors: nothing"):
        QUARK_MXFP4.read(found, {})
    assert QUARK_MXFP4.read({"quant_method": "quark"}, {}) is None
