"""Regrouping: more scales or fewer, and not one weight that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftconv.errors import Refused
from draftconv.quantization.regroup import ROWS, regroup, round_scales, rounding, same_values
from draftconv.quantization.rounding import dequantize
from draftconv.quantization.scheme import WeightDtype
from tests.quantization.formats import samples

GROUPS = (None, 8, 16, 32, 64, 24, 192)


@settings(max_examples=80)
@given(
    weight_dtype=st.sampled_from(["int4", "int8"]),
    dtype=st.sampled_from(["BF16", "F16", "F32"]),
    steps=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_one_scale_of_a_row_can_be_any_number(
    weight_dtype: WeightDtype, dtype: str, steps: list[int | None], seed: int
) -> None:
    whole = samples.weight(weight_dtype, rows=8, inputs=192, dtype=dtype, seed=seed)
    weight = whole
    for group in steps:
        weight = regroup(weight, group)
        assert weight.quantized.scale.shape == (8, 192 // (group or 192))
        assert torch.equal(dequantize(weight.quantized), dequantize(whole.quantized))
        assert torch.equal(weight.quantized.qvalues, whole.quantized.qvalues)
    assert samples.same(regroup(weight, None), whole)


@pytest.mark.parametrize(("found", "group"), [(32, 8), (32, 32), (16, 8), (64, 16)])
def test_smaller_groups_are_always_possible(found: int, group: int) -> None:
    weight = samples.weight("int4", found, inputs=128)
    finer = regroup(weight, group)
    assert finer.quantized.scale.shape == (16, 128 // group)
    assert torch.equal(dequantize(finer.quantized), dequantize(weight.quantized))
    assert samples.same(regroup(finer, found), weight)


@pytest.mark.parametrize(("found", "group"), [(32, None), (32, 64), (16, 128), (32, 24), (64, 48)])
def test_scales_that_differ_do_not_become_one(found: int, group: int | None) -> None:
    weight = samples.weight("int4", found, inputs=192 if found != 16 else 128)
    with pytest.raises(Refused, match=r"16 of 16 rows have scales that differ within \d+ inputs"):
        regroup(weight, group)


def test_one_row_that_differs_in_its_last_bit_is_enough() -> None:
    weight = regroup(samples.weight("int4", inputs=128), 32)
    scale = weight.quantized.scale.clone()
    scale.view(torch.int16)[7, 3] ^= 1
    with pytest.raises(Refused, match="1 of 16 rows have scales that differ within 128 inputs") as caught:
        regroup(samples.with_(weight, quantized=samples.with_scale(weight, scale)), None)
    assert caught.value.cure


def test_groups_that_do_not_fit_and_grids_without_a_choice() -> None:
    with pytest.raises(Refused, match="64 inputs are no multiple of the group of 128"):
        regroup(samples.weight("int4"), 128)
    with pytest.raises(Refused, match="FP8 E4M3 weights are not scaled per channel and per group alike"):
        regroup(samples.weight("fp8"), 32)


def test_what_is_beside_the_codes_stays() -> None:
    smoothed = samples.with_(samples.weight("int4"), pre_quant_scale=torch.ones(64), input_scale=torch.tensor(2.0))
    again = regroup(smoothed, 16)
    assert (again.pre_quant_scale is smoothed.pre_quant_scale, again.input_scale is smoothed.input_scale) == (True,) * 2


@pytest.mark.parametrize("group", [None, 16])
def test_one_other_value_is_seen_in_whatever_block_it_lies(group: int | None) -> None:
    weight = samples.weight("int4", group, rows=2 * ROWS + 8, inputs=32).quantized
    assert same_values(weight, replace(weight, scale=weight.scale.float()))
    for row in (0, ROWS, 2 * ROWS + 7):
        qvalues, scale = weight.qvalues.clone(), weight.scale.clone()
        qvalues[row, 5] ^= 1
        scale[row, -1] *= 2
        assert not same_values(weight, replace(weight, qvalues=qvalues))
        assert not same_values(weight, replace(weight, scale=scale))
    assert not same_values(weight, replace(weight, qvalues=weight.qvalues[:-1], scale=weight.scale[:-1]))


def test_scales_are_rounded_within_what_is_told() -> None:
    weight = samples.weight("int4", 16, rows=64, inputs=64, dtype="BF16", scale="F32")
    narrow = round_scales(weight, "down_proj").quantized.scale
    assert narrow.dtype == torch.bfloat16
    change = ((narrow.double() - weight.quantized.scale.double()) / weight.quantized.scale.double()).abs()
    assert 0 < change.max() <= rounding("BF16") == 2**-8


@pytest.mark.parametrize("scale", [1e6, 1e-9])
def test_scales_beyond_a_dtype_are_not_rounded_to_it(scale: float) -> None:
    weight = samples.weight("int4", dtype="F16", scale="F32")
    wide = replace(weight, quantized=replace(weight.quantized, scale=torch.full((16, 1), scale)))
    with pytest.raises(Refused, match="down_proj has scales that F16 does not hold"):
        round_scales(wide, "down_proj")
