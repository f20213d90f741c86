"""Scales that are found by counting weights, against those that are found by rounding every weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftconv.errors import BadCheckpoint
from draftconv.quantization import binned_search
from draftconv.quantization.binned_search import BINS, LEAST_INPUTS, BinnedRows, fits, search_rows
from draftconv.quantization.rounding import AT_ONCE, quantize
from draftconv.quantization.scales import Scaling
from draftconv.quantization.scheme import WeightScheme

MSE = WeightScheme("int4", "channel", "mse", "weight")
INPUTS = LEAST_INPUTS + 8

Made = Callable[[int], Tensor]
ROWS: dict[str, Made] = {
    "normal": lambda rows: 0.02 * torch.randn(rows, INPUTS),
    "heavy tails": lambda rows: torch.distributions.StudentT(2.0).sample((rows, INPUTS)),
    "one outlier": lambda rows: torch.cat([1e-3 * torch.randn(rows, INPUTS - 1), torch.ones(rows, 1)], 1),
    "even": lambda rows: torch.rand(rows, INPUTS) - 0.5,
    "of one sign": lambda rows: -torch.rand(rows, INPUTS),
    "on a grid": lambda rows: 0.03 * torch.randint(-8, 8, (rows, INPUTS)).float(),
    "many ties": lambda rows: (20 * torch.randn(rows, INPUTS)).round() / 16,
    "constant": lambda rows: torch.full((rows, INPUTS), 0.5),
    "zero": lambda rows: torch.zeros(rows, INPUTS),
    "subnormal": lambda rows: 1e-38 * torch.randn(rows, INPUTS),
    "huge": lambda rows: 1e37 * torch.randn(rows, INPUTS),
}


def scaling(scheme: WeightScheme = MSE, dtype: torch.dtype = torch.bfloat16) -> Scaling:
    return Scaling.of(scheme, dtype, torch.ones(()))


def searched(weight_OI: Tensor) -> Tensor:
    """The scales by rounding every weight under every scale."""
    wide_O1I = weight_OI.float()[:, None]
    return scaling().search(wide_O1I, wide_O1I.abs().amax(-1))


@pytest.fixture
def by_rounding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were given to the search by rounding, each time."""
    given: list[int] = []
    search = Scaling.search

    def counted(self: Scaling, wide_OGg: Tensor, top_OG: Tensor) -> Tensor:
        given.append(len(wide_OGg))
        return search(self, wide_OGg, top_OG)

    monkeypatch.setattr(Scaling, "search", counted)
    return given


@pytest.mark.parametrize("kind", ROWS)
def test_scales_are_those_of_the_search_by_rounding(kind: str) -> None:
    torch.manual_seed(0)
    weight_OI = ROWS[kind](64).bfloat16()
    assert torch.equal(search_rows(weight_OI, scaling(), AT_ONCE), searched(weight_OI))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    power=st.floats(0.3, 4),
    exponent=st.integers(-30, 30),
    digits=st.sampled_from([0, 1, 3, 7]),
)
def test_any_rows_at_any_scale_with_any_number_of_ties(seed: int, power: float, exponent: int, digits: int) -> None:
    """Few digits put many weights exactly half way between two quantized values."""
    random = torch.Generator().manual_seed(seed)
    normal = torch.randn(4, INPUTS, generator=random)
    weight_OI = normal.sign() * normal.abs() ** power
    if digits:
        step = weight_OI.abs().amax(1, keepdim=True) / 2**digits
        weight_OI = (weight_OI / step).round() * step.bfloat16().float()
    weight_OI = (weight_OI * 2.0**exponent).bfloat16()
    assert torch.equal(search_rows(weight_OI, scaling(), AT_ONCE), searched(weight_OI))


def test_sums_by_bins_are_those_of_the_weights() -> None:
    torch.manual_seed(0)
    weight_OI = ROWS["many ties"](8).bfloat16()
    rows = BinnedRows.of(weight_OI, 3 * INPUTS)
    step_TO = scaling().tried(weight_OI.abs().amax(1, keepdim=True).float()).squeeze(-1).float()
    judged = rows.judge(step_TO, scaling())
    wide_OI = weight_OI.double()
    for place, step_O in enumerate(step_TO):
        values_OI = (weight_OI.float() * step_O.reciprocal()[:, None]).round().clamp(-8, 7).double()
        error_O = (wide_OI - values_OI * step_O.double()[:, None]).square().sum(1)
        assert torch.equal(judged.product_TO[place], (wide_OI * values_OI).sum(1))
        assert torch.equal(judged.square_TO[place], values_OI.square().sum(1))
        assert judged.seen_TO[place].all()
        torch.testing.assert_close(judged.error_TO[place], error_O, rtol=1e-2, atol=0)
    small = rows.judge(step_TO[-1:] / 8, scaling())
    assert not small.seen_TO.any(), "weights below all bins count there"


def test_few_rows_need_to_be_rounded(by_rounding: list[int]) -> None:
    torch.manual_seed(0)
    search_rows(ROWS["normal"](400).bfloat16(), scaling(), AT_ONCE)
    assert sum(by_rounding) <= 20


def test_rows_that_hang_on_the_last_digits_are_rounded(by_rounding: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight_OI = ROWS["normal"](400).bfloat16()
    monkeypatch.setattr(binned_search, "TOLERANCE", 1e-3)
    assert torch.equal(search_rows(weight_OI, scaling(), AT_ONCE), searched(weight_OI))
    assert 100 < sum(by_rounding[:-1]) < 400


def test_zeros_are_left_to_the_search_by_rounding(by_rounding: list[int]) -> None:
    """Every scale is as good, and the first one is taken."""
    search_rows(torch.zeros(3, INPUTS, dtype=torch.bfloat16), scaling(), AT_ONCE)
    assert by_rounding == [3]


@pytest.mark.parametrize(
    ("scheme", "dtype", "inputs", "binned"),
    [
        (MSE, torch.bfloat16, LEAST_INPUTS, True),
        (MSE, torch.bfloat16, LEAST_INPUTS - 1, False),
        (MSE, torch.float16, INPUTS, False),
        (MSE, torch.float32, INPUTS, False),
        (replace(MSE, scale_dtype="F32"), torch.bfloat16, INPUTS, False),
        (replace(MSE, scale_rule="max/7"), torch.bfloat16, INPUTS, False),
        (WeightScheme("int8", "channel", "mse", "weight"), torch.bfloat16, INPUTS, False),
        (WeightScheme("int4", "group", "mse", "weight", 128), torch.bfloat16, 128 * 32, False),
    ],
    ids=str,
)
def test_which_rows_are_counted(scheme: WeightScheme, dtype: torch.dtype, inputs: int, binned: bool) -> None:
    weight_OI = torch.randn(2, inputs).to(dtype)
    assert fits(weight_OI, scaling(scheme, dtype), scheme.group or inputs) is binned


def test_quantize_counts_and_refuses_what_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight_OI = ROWS["normal"](40).bfloat16()
    found = quantize(weight_OI, MSE)
    monkeypatch.setattr("draftconv.quantization.rounding.fits", lambda *_: False)
    other = quantize(weight_OI, MSE)
    assert torch.equal(found.scale, other.scale)
    assert torch.equal(found.qvalues, other.qvalues)
    monkeypatch.undo()
    for bad in (torch.nan, torch.inf, -torch.inf):
        weight_OI[3, BINS] = bad
        with pytest.raises(BadCheckpoint, match="NaN or infinite"):
            quantize(weight_OI, MSE)
