"""What the judge of trainers' quantized exports notices: its own formulas against draftconv's, and what is damaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import pytest
import torch
from torch import Tensor
from trainer_truth import TABLE
from truth.trainers.quantized import BROKEN, SMOOTHED, TOLD_OF, UNREAD
from truth.trainers.shared import Directory
from truth.trainers.stored import is_rounded, quantized_modules, rounded, stands_for, wrong_float
from truth.trainers.table import load
from truth.trainers.trainer import Quantizer, trainer

from draftconv.quantization.computations import floats
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.rounding import quantize
from draftconv.quantization.scheme import WeightScheme

FP8 = WeightScheme("fp8", "channel", "max/448", "F32")
FP8_TENSOR = WeightScheme("fp8", "tensor", "max/448", "F32")
NVFP4 = WeightScheme("nvfp4", "group", "max/6", "F8_E4M3", 16)
INT4 = WeightScheme("int4", "group", "max/7", "F32", 32)
STATIC = torch.tensor(0.01)
SMOOTHING = torch.linspace(0.5, 2.0, 64)

SCHEMES = {
    "modelopt-fp8 per channel": (FP8, None, None),
    "modelopt-fp8": (FP8_TENSOR, STATIC, None),
    "modelopt-nvfp4": (NVFP4, STATIC, None),
    "modelopt-awq": (INT4, None, SMOOTHING),
}
MODULES = ("layers.0.self_attn.q_proj", "layers.0.self_attn.v_proj")
every_format = pytest.mark.parametrize("name", SCHEMES)


def stored(name: str, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two weights as ModelOpt stores them beside a norm and a bias, and the floats that draftconv takes them for."""
    scheme, static, smoothing = SCHEMES[name]
    form = formats()[name.partition(" ")[0]]
    norm, bias = torch.linspace(0.9, 1.1, 64).to(dtype), torch.ones(32, dtype=dtype)
    tensors = {"norm.weight": norm, f"{MODULES[0]}.bias": bias}
    restored = dict(tensors)
    for seed, module in enumerate(MODULES):
        weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed))
        made = Weight(quantize(weight, scheme), "F32", static, smoothing)
        tensors |= {f"{module}.{part}": tensor for part, tensor in form.store(made).items()}
        restored[f"{module}.weight"] = floats(made, dtype)
    return tensors, restored


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_format
def test_two_readings_of_the_same_bytes_agree(name: str, dtype: torch.dtype) -> None:
    tensors, restored = stored(name, dtype)
    assert quantized_modules(tensors) == set(MODULES)
    assert wrong_float(tensors, restored) == ""


def test_bytes_stand_for_these_values() -> None:
    """Written out by hand: nibbles, signs, and which of two neighbours is the low one."""
    nvfp4 = {
        "m.weight": torch.tensor([[0x9A, 0x7F] + [0] * 6], dtype=torch.uint8),
        "m.weight_scale": torch.tensor([[2.0]]).to(torch.float8_e4m3fn),
        "m.weight_scale_2": torch.tensor(0.5),
    }
    assert stands_for(nvfp4, "m")[0, :4].tolist() == [-1.0, -0.5, -6.0, 6.0]
    int4 = {
        "m.weight": torch.tensor([[0x8F, 0x71]], dtype=torch.uint8),
        "m.weight_scale": torch.tensor([[2.0, 4.0], [1.0, 0.5]]),
        "m.pre_quant_scale": torch.tensor([1.0, 0.5]),
    }
    assert stands_for(int4, "m").tolist() == [[-2.0, 2.0], [-8.0, 1.75]]
    fp8 = {"m.weight": torch.tensor([[1.5, -448.0]]).to(torch.float8_e4m3fn), "m.weight_scale": torch.tensor([3.0])}
    assert stands_for(fp8, "m").tolist() == [[4.5, -1344.0]]


def test_rounding_is_to_the_nearest_and_of_two_to_the_even_one() -> None:
    exact = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-40, 0.0], dtype=torch.float64)
    assert rounded(exact, torch.bfloat16).tolist() == [1.0, 1 + 2.0**-6, 1 + 2.0**-7, 0.0]
    assert exact[2].float().bfloat16() == 1.0  # rounded twice


def nudged(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One element of a tensor moved to the second float after it."""
    tensor = tensors[name].clone()
    tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16).flatten()[5] += 2
    return {**tensors, name: tensor}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_format
def test_one_element_that_is_two_floats_off_is_noticed(name: str, dtype: torch.dtype) -> None:
    tensors, restored = stored(name, dtype)
    weight = f"{MODULES[1]}.weight"
    assert wrong_float(tensors, nudged(weight, restored)) == f"{weight} is not what its values and scales stand for"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda floats: nudged("norm.weight", floats), "norm.weight has other bits"),
        (lambda floats: {**floats, "norm.weight": floats["norm.weight"].bfloat16()}, "norm.weight has other bits"),
        (lambda floats: nudged(f"{MODULES[0]}.bias", floats), f"{MODULES[0]}.bias has other bits"),
        (lambda floats: {k: v for k, v in floats.items() if "bias" not in k}, f"{MODULES[0]}.bias is in one of them"),
        (lambda floats: {**floats, f"{MODULES[0]}.weight_scale": torch.ones(1)}, "weight_scale is in one of them only"),
        (lambda floats: {**floats, f"{MODULES[0]}.weight": torch.ones(32, 32)}, "is not what its values"),
    ],
)
def test_what_was_not_quantized_keeps_its_bits(
    damage: Callable[[dict[str, Tensor]], dict[str, Tensor]], told: str
) -> None:
    tensors, restored = stored("modelopt-awq")
    assert told in wrong_float(tensors, damage(restored))


@every_format
def test_a_damaged_export_stands_for_something_else(name: str) -> None:
    """Each damage that the table asks the trainer about reaches the floats."""
    tensors, _ = stored(name)
    for what, change in BROKEN.items():
        if "smoothing" in what and name != "modelopt-awq":
            continue
        damaged = change(Directory({}, tensors)).tensors
        assert any(
            not is_rounded(stands_for(tensors, module).float(), stands_for(damaged, module)) for module in MODULES
        ), what


def test_every_scheme_of_a_trainer_was_asked_and_every_damage_noticed() -> None:
    rows = [row for row in load(TABLE).rows if row.part == "quantized"]
    cases = {row.case: row for row in rows}
    schemes = cast(Quantizer, trainer("modelopt")).SCHEMES
    for scheme in schemes:
        row = cases[f"llama-eagle3, {scheme}"]
        assert row.predicted == row.observed == ("not read" if scheme in UNREAD else "equal")
        if scheme in UNREAD:
            assert UNREAD[scheme] in row.detail
            continue
        assert cases[f"llama-eagle3, {scheme}, in BF16"].observed == "equal"
        for what in BROKEN:
            if "smoothing" not in what or scheme in SMOOTHED:
                assert cases[f"llama-eagle3, {scheme}, {what}"].observed == "differs"
    assert {scheme for _, scheme in TOLD_OF} | set(SMOOTHED) | set(UNREAD) <= set(schemes)
