"""GPTQ against its definition, written out; how it chooses; and what its second moments and its factor are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftconv.errors import BadCheckpoint
from draftconv.quantization import gptq as module
from draftconv.quantization.gptq import choose, importance_order
from draftconv.quantization.inverse_factor import damp, invert_factor
from draftconv.quantization.rounding import RoundedWeight, dequantize, quantize
from draftconv.quantization.scheme import DTYPES, WeightScheme
from draftconv.quantization.second_moments import AT_ONCE, SecondMoment
from draftconv.quantization.threads import Workers, workers
from tests.quantization.second_moment import CHANNEL, GROUP, SCHEMES, Case, case, gptq

CPU = torch.device("cpu")


def by_definition(found: Case, scheme: WeightScheme, damping: float) -> Tensor:
    """Algorithm 1 of Frantar et al. 2022 with inputs by descending second moment, one after the other."""
    inputs = len(found.moment_II)
    damped_II = found.moment_II + damping * found.moment_II.diagonal().mean() * torch.eye(inputs, dtype=torch.float64)
    order_I = damped_II.diagonal().argsort(descending=True, stable=True)
    upper_II = torch.linalg.cholesky(torch.linalg.inv(damped_II[order_I][:, order_I]), upper=True)
    scale_OG, dtype = quantize(found.weight_OI, scheme).scale.double(), DTYPES[scheme.dtype]
    left_OI, value_OI = found.weight_OI.double()[:, order_I], torch.empty_like(found.weight_OI)
    for position, number in enumerate(order_I.tolist()):
        step_O = scale_OG[:, number * scale_OG.shape[1] // inputs]
        value_O = (left_OI[:, position] / step_O).round().clamp(dtype.low, dtype.high)
        value_OI[:, number] = value_O
        error_O = (left_OI[:, position] - value_O * step_O) / upper_II[position, position]
        left_OI[:, position:] -= error_O[:, None] * upper_II[position, position:]
    return value_OI


def chosen(found: Case, scheme: WeightScheme = CHANNEL, held_NI: Tensor | None = None) -> module.ChosenRounding:
    moment_II = found.moment_II.float()
    with workers(CPU) as each:
        return choose(
            {"w": found.weight_OI},
            scheme,
            moment_II.diagonal(),
            lambda order_I: moment_II[order_I][:, order_I],
            (found.inputs_NI if held_NI is None else held_NI).float(),
            each,
        )["w"]


def output_error(found: Case, rounded: RoundedWeight, inputs_NI: Tensor) -> float:
    return float((inputs_NI @ (dequantize(rounded) - found.weight_OI).double().T).square().sum())


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("inputs", [96, 320])
def test_it_is_the_algorithm_of_its_authors(scheme: WeightScheme, inputs: int) -> None:
    found = case(1, inputs=inputs)
    assert torch.equal(gptq(found, scheme, 0.1).qvalues.float(), by_definition(found, scheme, 0.1))
    assert not torch.equal(gptq(found, scheme, 0.1).qvalues.float(), by_definition(found, scheme, 0.2))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_outputs_err_less_and_scales_stay(scheme: WeightScheme) -> None:
    found = case(4)
    ours, nearest = gptq(found, scheme), quantize(found.weight_OI, scheme)
    assert torch.equal(ours.scale, nearest.scale)
    assert output_error(found, ours, found.inputs_NI) < 0.5 * output_error(found, nearest, found.inputs_NI)
    assert output_error(found, nearest, torch.eye(96, dtype=torch.float64)) < output_error(
        found, ours, torch.eye(96, dtype=torch.float64)
    )


def test_inputs_that_know_nothing_of_each_other_are_rounded_to_nearest() -> None:
    found = case(2)
    alone = Case(found.weight_OI, found.inputs_NI, torch.diag(found.moment_II.diagonal()))
    assert torch.equal(gptq(alone, GROUP).qvalues, quantize(found.weight_OI, GROUP).qvalues)


def test_an_input_that_was_always_zero_is_rounded_to_nearest() -> None:
    found = case(2)
    moment_II = found.moment_II.clone()
    moment_II[:, 7] = moment_II[7] = 0
    ours = gptq(Case(found.weight_OI, found.inputs_NI, moment_II), CHANNEL)
    assert torch.equal(ours.qvalues[:, 7], quantize(found.weight_OI, CHANNEL).qvalues[:, 7])


@pytest.mark.parametrize("inputs", [3, 96, 700, 1100])
def test_the_factor_is_that_of_the_inverse(inputs: int) -> None:
    random = torch.Generator().manual_seed(inputs)
    rows_NI = torch.randn(2 * inputs, inputs, generator=random, dtype=torch.float64)
    matrix_II = damp(rows_NI.T @ rows_NI, 0.01)
    factor_II = matrix_II.clone()
    with workers(CPU) as each:
        assert invert_factor(factor_II, each)
    lower_II = factor_II.tril()
    wanted_II = torch.linalg.cholesky(torch.linalg.inv(matrix_II.flip(0, 1)), upper=True)
    assert torch.allclose(lower_II.flip(0, 1), wanted_II, rtol=1e-9, atol=1e-12)


def test_what_is_not_positive_definite_is_told() -> None:
    for broken_II in (-torch.eye(600), torch.full((40, 40), torch.nan), torch.zeros(8, 8)):
        assert not invert_factor(broken_II, Workers())


@given(st.lists(st.integers(1, 900), min_size=1, max_size=6))
def test_a_second_moment_is_a_sum_over_rows(parts: list[int]) -> None:
    random = torch.Generator().manual_seed(1)
    rows_NI = torch.randn(sum(parts), 5, generator=random)
    moment = SecondMoment.of(5, CPU)
    for part_NI in rows_NI.split(parts):
        moment.add(part_NI)
    assert len(moment.waiting()) < AT_ONCE
    kept = SecondMoment(moment.sum_II.clone(), moment.rows)  # as a run that was stopped goes on
    kept.add(moment.waiting())
    assert torch.equal(kept.mirror(), moment.mirror())
    assert moment.rows == sum(parts)
    assert torch.allclose(moment.mirror(), rows_NI.T @ rows_NI, rtol=1e-4, atol=1e-3)


def test_bits_do_not_depend_on_threads() -> None:
    found = case(8, outputs=1100, inputs=1100, rows=1500)
    before, outcomes = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            moment = SecondMoment.of(1100, CPU)
            moment.add(found.inputs_NI.float())
            best = chosen(Case(found.weight_OI, found.inputs_NI[:64], moment.mirror()))
            assert torch.get_num_threads() == threads
            outcomes.append((moment.sum_II, best.rounding))
    finally:
        torch.set_num_threads(before)
    for moment_II, rounding in outcomes[1:]:
        assert torch.equal(moment_II, outcomes[0][0])
        assert torch.equal(rounding.qvalues_OI, outcomes[0][1].qvalues_OI)
        assert rounding.error == outcomes[0][1].error
    assert outcomes[0][1].damping is not None


def test_the_least_error_on_held_out_rows_is_chosen() -> None:
    found = case(9)
    best = chosen(found)
    rounded = quantize(found.weight_OI, CHANNEL)
    rounded_by = {damping: gptq(found, CHANNEL, damping) for damping in module.DAMPINGS}
    errors = {damping: output_error(found, ours, found.inputs_NI) for damping, ours in rounded_by.items()}
    assert best.rounding.damping == min(errors, key=errors.__getitem__)
    assert best.rounding.error == pytest.approx(min(errors.values()), rel=1e-3)
    assert best.nearest_error == pytest.approx(output_error(found, rounded, found.inputs_NI), rel=1e-3)
    assert best.signal == pytest.approx(float((found.inputs_NI @ found.weight_OI.double().T).square().sum()), rel=1e-3)


def test_where_it_does_harm_values_stay_the_nearest() -> None:
    found = case(9, rows=20)  # a fifth of a row per input
    elsewhere = case(10)
    best = chosen(found, held_NI=elsewhere.inputs_NI)
    assert best.rounding.damping is None
    assert torch.equal(best.rounding.qvalues_OI, quantize(found.weight_OI, CHANNEL).qvalues)
    assert best.rounding.error == best.nearest_error


def test_a_moment_that_has_no_factor_leaves_the_nearest() -> None:
    found = case(9)
    broken = Case(found.weight_OI, found.inputs_NI, -found.moment_II)
    assert chosen(broken).rounding.damping is None


def test_equal_inputs_are_taken_in_their_order() -> None:
    assert importance_order(torch.tensor([2.0, 1.0, 2.0, 1.0])).flip(0).tolist() == [0, 2, 1, 3]


def test_a_weight_that_is_not_finite_is_refused() -> None:
    found = case(9)
    found.weight_OI[3, 3] = torch.inf
    with pytest.raises(BadCheckpoint, match="w holds NaN or infinite values"):
        chosen(found)
