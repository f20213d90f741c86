"""Rounding to every grid, against plain Python and against what must hold of any rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftconv.errors import BadCheckpoint, UsageError
from draftconv.quantization import rounding, scales
from draftconv.quantization.pack_int32 import pack, unpack
from draftconv.quantization.quantized_values import decode
from draftconv.quantization.rounding import RoundedWeight, dequantize, input_scale, peak, quantize, round_trip
from draftconv.quantization.scheme import DTYPES, SCALE_RULES, InputScheme, WeightDtype, WeightScheme
from tests.quantization import plain

FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
QUARK = WeightScheme("int4", "channel", "max/7.5", "weight")
MODELOPT = WeightScheme("int4", "group", "max/7", "F32", 16)
MSE = WeightScheme("int4", "channel", "mse", "weight")
INT8 = WeightScheme("int8", "channel", "max/127", "F32")
FP8 = WeightScheme("fp8", "channel", "max/448", "F32")
FP8_TENSOR = WeightScheme("fp8", "tensor", "max/448", "F32")
NVFP4 = WeightScheme("nvfp4", "group", "max/6", "F8_E4M3", 16)
MXFP4 = WeightScheme("mxfp4", "group", "max/3.5", "E8M0", 32)
INT8_TOKEN = InputScheme("int8", "token", True)
FP8_TOKEN = InputScheme("fp8", "token", True)

EVERY = [
    WeightScheme(dtype, granularity, rule, scale_dtype, (row.group or 16) if granularity == "group" else None)
    for dtype, row in DTYPES.items()
    for granularity in row.granularity
    for rule in row.rules
    for scale_dtype in row.scales
]
every = pytest.mark.parametrize("scheme", EVERY, ids=str)
dtypes = pytest.mark.parametrize("dtype", FLOATS)


def heavy(rows: int, inputs: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    """Weights with heavy tails, rows of zeros and of one value among them."""
    torch.manual_seed(seed)
    weight = 0.02 * torch.randn(rows, inputs) / torch.rand(rows, inputs).clamp_min(0.05)
    weight[0] = 0
    weight[1] = 0.5
    weight[2, ::2] = -0.0
    return weight.to(dtype)


@st.composite
def weights(draw: st.DrawFn, inputs: int = 32) -> Tensor:
    """A few rows of bfloat16 of one order of magnitude, with ties and extremes likely."""
    near = st.floats(-4, 4, width=16).map(lambda x: x * 2.0 ** draw(st.integers(-12, 3)))
    rows = draw(st.lists(st.lists(near, min_size=inputs, max_size=inputs), min_size=1, max_size=4))
    return torch.tensor(rows, dtype=torch.float32).to(torch.bfloat16)


def relative(weight: Tensor, scheme: WeightScheme) -> float:
    back = dequantize(quantize(weight, scheme))
    return float((back - weight.float()).norm() / weight.float().norm())


# ── bits, against plain Python ─────────────────────────────────────────────────────


@dtypes
@pytest.mark.parametrize("group", [None, 16])
def test_int4_max_75_is_quark_s(dtype: str, group: int | None) -> None:
    weight = heavy(24, 64, FLOATS[dtype])
    scheme = replace(QUARK, granularity="group", group=group) if group else QUARK
    found = quantize(weight, scheme)
    assert found.scale.dtype == FLOATS[dtype]
    for row, qvalues, row_scales in zip(weight.tolist(), found.qvalues.tolist(), found.scale.tolist(), strict=True):
        size = group or len(row)
        for at, scale in zip(range(0, len(row), size), row_scales, strict=True):
            assert (qvalues[at : at + size], scale) == plain.quark_int4(row[at : at + size], dtype)


@dtypes
def test_int4_max_7_is_modelopt_s(dtype: str) -> None:
    weight = heavy(24, 64, FLOATS[dtype])
    found = quantize(weight, MODELOPT)
    for row, qvalues, row_scales in zip(weight.tolist(), found.qvalues.tolist(), found.scale.tolist(), strict=True):
        for at, scale in zip(range(0, 64, 16), row_scales, strict=True):
            assert (qvalues[at : at + 16], scale) == plain.modelopt_int(row[at : at + 16], 4)


@dtypes
def test_int8_is_modelopt_s(dtype: str) -> None:
    weight = heavy(24, 64, FLOATS[dtype])
    found = quantize(weight, INT8)
    for row, qvalues, (scale,) in zip(weight.tolist(), found.qvalues.tolist(), found.scale.tolist(), strict=True):
        assert (qvalues, scale) == plain.modelopt_int(row, 8)


@dtypes
@pytest.mark.parametrize("scheme", [FP8, FP8_TENSOR], ids=str)
def test_fp8_is_modelopt_s(dtype: str, scheme: WeightScheme) -> None:
    weight = heavy(12, 64, FLOATS[dtype])
    found = quantize(weight, scheme)
    largest = plain.top([plain.top(row) for row in weight.tolist()])
    for i, row in enumerate(weight.tolist()):
        values, scale = (
            plain.fp8(row, largest, dtype) if scheme.granularity == "tensor" else plain.fp8(row, plain.top(row))
        )
        assert found.qvalues[i].float().tolist() == values
        assert found.scale[0 if scheme.granularity == "tensor" else i].item() == scale


@dtypes
def test_nvfp4_is_modelopt_s(dtype: str) -> None:
    weight = heavy(12, 64, FLOATS[dtype])
    found = quantize(weight, NVFP4)
    largest = plain.top([plain.top(row) for row in weight.tolist()])
    for row, qvalues, row_scales in zip(weight.tolist(), found.qvalues, found.scale.float().tolist(), strict=True):
        for at, scale in zip(range(0, 64, 16), row_scales, strict=True):
            values = decode(qvalues[at : at + 16], "nvfp4").tolist()
            assert (values, scale, found.unit.item()) == plain.nvfp4(row[at : at + 16], largest)


@dtypes
def test_mxfp4_is_quark_s(dtype: str) -> None:
    weight = heavy(12, 64, FLOATS[dtype])
    weight[3, 0], weight[4, 0], weight[5, 0] = 7.0, 6.96875, 3.5  # at, below and at a change of exponent
    found = quantize(weight, MXFP4)
    for row, qvalues, row_scales in zip(weight.tolist(), found.qvalues, found.scale.tolist(), strict=True):
        for at, exponent in zip((0, 32), row_scales, strict=True):
            values = decode(qvalues[at : at + 32], "mxfp4").tolist()
            assert (values, exponent - 127) == plain.mxfp4(row[at : at + 32])


def test_fp4_codes() -> None:
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -6.0, 0.0, -0.0, 0.1, -0.1, 5.5]
    found = quantize(torch.tensor([ties]), NVFP4, whole=torch.tensor(6.0 * 448))
    assert found.scale.float().tolist() == [[1.0]]
    assert found.qvalues.tolist() == [[0, 2, 2, 4, 4, 6, 6, 7, 8, 10, 15, 0, 0, 0, 8, 7]]


def test_the_reciprocal_is_told_from_the_quotient() -> None:
    """A weight halfway between two codes, where the last bit of the arithmetic decides."""
    weight = torch.tensor([[1.5234375, 1.3203125]], dtype=torch.bfloat16)
    assert quantize(weight, QUARK).qvalues.tolist() == [[7, 7]]
    assert (weight.float() / quantize(weight, QUARK).scale.float()).round().tolist() == [[8, 6]]


# ── activations ────────────────────────────────────────────────────────────────────


@dtypes
@pytest.mark.parametrize(("scheme", "expected"), [(INT8_TOKEN, plain.int8_token), (FP8_TOKEN, plain.fp8_token)])
def test_activations_are_rounded_as_vllm_rounds_them(dtype: str, scheme: InputScheme, expected: Any) -> None:
    x = 50 * heavy(10, 24, FLOATS[dtype])
    found = round_trip(x.view(2, 5, 24), scheme)
    assert (found.shape, found.dtype) == ((2, 5, 24), x.dtype)
    wanted = torch.tensor([expected(row) for row in x.tolist()]).to(x.dtype)
    assert torch.equal(found.view(10, 24), wanted)


def test_every_token_has_its_own_scale() -> None:
    x = heavy(8, 64, torch.float32)[3:]
    louder = x * torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0]])
    for scheme in (INT8_TOKEN, FP8_TOKEN):
        apart = round_trip(louder, scheme)
        assert torch.equal(apart, round_trip(x, scheme) * (louder / x)[:, :1].round())
        assert torch.equal(apart[2], round_trip(louder[2], scheme))


def test_static_activations_have_no_scale_here() -> None:
    with pytest.raises(UsageError, match="need scales") as caught:
        round_trip(torch.ones(2, 4), InputScheme("fp8", "tensor", False))
    assert "calibration" in caught.value.why


# ── what must hold of any rounding ─────────────────────────────────────────────────


@every
def test_codes_and_scales_are_what_they_say(scheme: WeightScheme) -> None:
    weight = heavy(12, 64)
    found = quantize(weight, scheme)
    groups = {"tensor": 1, "channel": 1, "group": 64 // (scheme.group or 64)}[scheme.granularity]
    assert found.qvalues.shape == weight.shape
    assert found.scale.shape == ((1, 1) if scheme.granularity == "tensor" else (12, groups))
    values = decode(found.qvalues, scheme.dtype)
    assert values.min() >= DTYPES[scheme.dtype].low
    assert values.max() <= DTYPES[scheme.dtype].high
    step = scales.step(scheme.dtype, found.scale, found.unit)
    assert step.isfinite().all()
    assert (step > 0).all()
    assert torch.equal(dequantize(found)[0], torch.zeros(64))


@every
@pytest.mark.parametrize("at_once", [1, 64, 200])
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_and_threads_change_no_bit(
    scheme: WeightScheme, at_once: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = heavy(13, 64)
    whole = quantize(weight, scheme)
    back = dequantize(whole)
    monkeypatch.setattr(rounding, "AT_ONCE", at_once)
    torch.set_num_threads(threads)
    try:
        assert equal(quantize(weight, scheme), whole)
        assert torch.equal(dequantize(whole), back)
    finally:
        torch.set_num_threads(1)
    rows = [quantize(weight[i : i + 1], scheme, whole=peak(weight)) for i in range(13)]
    assert torch.equal(torch.cat([row.qvalues.view(torch.uint8) for row in rows]), whole.qvalues.view(torch.uint8))


def test_one_long_row_is_the_same_on_two_threads() -> None:
    weight = heavy(4, 1 << 17)[3:]
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(quantize(weight, MSE))
    torch.set_num_threads(1)
    assert equal(*found)
    assert equal(found[0], cut(quantize(heavy(4, 1 << 17), MSE), 3))


@settings(max_examples=60)
@given(weights())
def test_the_error_is_at_most_half_a_step(weight: Tensor) -> None:
    """Within the clip, for uniform grids; to float32's own rounding."""
    for scheme in (QUARK, MSE, replace(MODELOPT, group=32), INT8):
        found = quantize(weight, scheme)
        step, row = found.scale.float(), DTYPES[scheme.dtype]
        wide = weight.float()
        inside = (wide >= step * row.low) & (wide <= step * row.high)
        off = (dequantize(found) - wide).abs()
        assert (off[inside] <= (step * 0.5 * (1 + 2**-16)).expand_as(off)[inside]).all()
        assert (
            scheme.scale_rule == "mse" or (off <= step * 0.5 * (1 + 2**-4)).all()
        )  # max rules clip half a step at most


@settings(max_examples=60)
@given(weights())
def test_quantizing_again_changes_nothing(weight: Tensor) -> None:
    """Under the scale it already has, a dequantized weight has the same codes."""
    for scheme in (QUARK, MSE, MODELOPT, INT8, FP8, NVFP4, MXFP4):
        first = quantize(weight, scheme)
        made = scales.Scaling.of(scheme, weight.dtype, peak(weight))
        values = made.values(torch.unflatten(dequantize(first), 1, (first.scale.shape[1], -1)), first.scale)
        assert torch.equal(values.flatten(1), decode(first.qvalues, scheme.dtype))


@settings(max_examples=40)
@given(weights())
def test_a_max_rule_that_clips_nothing_is_idempotent(weight: Tensor) -> None:
    for scheme in (MODELOPT, INT8):
        first = quantize(weight, scheme)
        again = quantize(dequantize(first), scheme)
        assert torch.equal(again.qvalues, first.qvalues)


@settings(max_examples=60)
@given(weights())
@example(torch.nn.functional.pad(torch.tensor([[2.0**-24]], dtype=torch.bfloat16), (31, 0)))
def test_least_squares_is_never_worse_than_the_max_rules(weight: Tensor) -> None:
    cases: tuple[tuple[WeightDtype, int | None], ...] = (("int4", None), ("int4", 16), ("int8", None), ("mxfp4", 32))
    for dtype, group in cases:
        row = DTYPES[dtype]
        errors = {
            rule: squared(weight, WeightScheme(dtype, "group" if group else "channel", rule, row.scales[0], group))
            for rule in row.rules
        }
        below = (
            len(weight.flatten()) * ((SCALE_RULES["mse"].floor or 0) / 2) ** 2
        )  # rules without a floor may go below it
        assert all(errors["mse"] <= other * (1 + 2**-18) + below for other in errors.values())


def squared(weight: Tensor, scheme: WeightScheme) -> float:
    return float((dequantize(quantize(weight, scheme), torch.float64) - weight.double()).square().sum())


@pytest.mark.parametrize("group", [None, 128, 32])
def test_least_squares_finds_what_a_dense_search_finds(group: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = replace(MSE, granularity="group", group=group) if group else MSE
    weight = heavy(64, 1024)[3:]
    found = relative(weight, scheme)
    monkeypatch.setitem(scales.DIVISORS, "int4", tuple(6.5 / 0.99**k for k in range(240)))
    assert found <= 1.015 * relative(weight, scheme)


def test_least_squares_on_heavy_tails() -> None:
    """The figures that make it the default: relative error of one fixed weight."""
    weight = heavy(64, 4096)[3:]
    figures = {rule: relative(weight, WeightScheme("int4", "channel", rule, "weight")) for rule in DTYPES["int4"].rules}
    assert figures == pytest.approx(HEAVY, abs=2e-3)


HEAVY = {"max/7.5": 0.302, "max/7": 0.315, "mse": 0.236}


# ── broken inputs ──────────────────────────────────────────────────────────────────


def equal(a: RoundedWeight, b: RoundedWeight) -> bool:
    pairs = ((a.qvalues, b.qvalues), (a.scale, b.scale), (a.unit, b.unit))
    return all(torch.equal(x.flatten().view(torch.uint8), y.flatten().view(torch.uint8)) for x, y in pairs)


def cut(whole: RoundedWeight, row: int) -> RoundedWeight:
    return replace(whole, qvalues=whole.qvalues[row : row + 1], scale=whole.scale[row : row + 1])


def test_damage_is_noticed() -> None:
    """A doubled scale and permuted nibbles are far outside what rounding does."""
    torch.manual_seed(0)
    weight = torch.randn(16, 256).bfloat16()
    good = quantize(weight, QUARK)
    doubled = replace(good, scale=good.scale * 2)
    permuted = replace(good, qvalues=unpack(pack(good.qvalues, "order"), "reorder"))
    step = good.scale.float()
    assert ((dequantize(good) - weight.float()).abs() <= 0.53 * step).all()
    for bad in (doubled, permuted):
        assert not equal(bad, good)
        assert ((dequantize(bad) - weight.float()).abs() > 0.53 * step).float().mean() > 0.3


@every
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(scheme: WeightScheme, value: float) -> None:
    weight = heavy(12, 64)
    weight[7, 5] = value
    with pytest.raises(BadCheckpoint, match=r"^q_proj holds NaN or infinite") as caught:
        quantize(weight, scheme, whole=torch.tensor(1.0), name="q_proj")
    assert caught.value.cure


@pytest.mark.parametrize(("dtype", "largest"), [("fp8", 448), ("nvfp4", 448 * 6)])
def test_the_largest_activation_is_the_largest_of_the_grid(dtype: Literal["fp8", "nvfp4"], largest: int) -> None:
    """NVFP4's scale is one of scales, which reach 448 themselves."""
    static = InputScheme(dtype, "tensor", False)
    assert input_scale(torch.tensor(float(largest)), static) == 1
    assert input_scale(torch.tensor(largest / 4).bfloat16(), static) == 0.25
    with pytest.raises(UsageError, match="have no stored scale"):
        input_scale(torch.tensor(1.0), InputScheme("fp8", "token", True))


def test_a_group_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="24 inputs, which is no multiple of the group of 16"):
        quantize(heavy(12, 24), MODELOPT)


@dtypes
def test_what_comes_back_has_the_dtype_asked_for(dtype: str) -> None:
    found = quantize(heavy(12, 64), QUARK)
    exact = dequantize(found)
    assert torch.equal(dequantize(found, FLOATS[dtype]), exact.to(FLOATS[dtype]))
    assert torch.equal(exact, found.qvalues.double().mul(found.scale.double()).float())  # the product was exact


def test_f64_is_read_as_f32() -> None:
    wide = heavy(12, 64, torch.float64)
    assert equal(quantize(wide, QUARK), quantize(wide.float(), QUARK))
