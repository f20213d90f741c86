"""What GPTQ is told to take, beforehand."""

from __future__ import annotations

import pytest
import torch

from draftconv.quantization.gptq_cost import (
    Rate,
    SharedInputs,
    Workload,
    collecting_memory,
    measured_rate,
    pass_work,
    rounding_memory,
    rounding_work,
)

KIMI = (
    SharedInputs(14336, 24576, 8192, 2 * 14336 * 24576),
    SharedInputs(8192, 7168, 7168, 2 * 8192 * 7168),
    SharedInputs(7168, 24576, 12288, 2 * 7168 * 24576),
    SharedInputs(12288, 7168, 7168, 2 * 12288 * 7168),
)
"""The layer of kimi-k2.5-eagle3: q, k and v; o; gate and up; down."""
FC = SharedInputs(21504, 7168, 7168, 2 * 21504 * 7168)
PARAMETERS = 829_000_000
PASSING = 1024 * (3 * 14336 + 8192 + 2 * 7168 + 12288 + 21504)


def test_a_kimi_drafter_fits_into_six_gigabytes_on_two_threads() -> None:
    for some in (KIMI[:3], KIMI[3:]):
        assert collecting_memory(PARAMETERS, some, 1024, PASSING) < 6e9
    for one in KIMI:
        assert rounding_memory(one, 2, 1024) < 6e9
    assert collecting_memory(PARAMETERS, [FC], 1024, PASSING) < 6.3e9
    assert rounding_memory(FC, 2, 1024) < 6e9


def test_what_a_pass_holds_is_told() -> None:
    """The first three inputs of a Kimi layer were measured: 5.85 GB at the peak."""
    assert collecting_memory(PARAMETERS, KIMI[:3], 1024, PASSING) == pytest.approx(5.85e9, rel=0.01)


def test_work_is_counted_once_for_each_way_to_round() -> None:
    one = SharedInputs(1000, 1024, 1024, 2_048_000)
    work = rounding_work(one, 10)
    assert work.columns == 4 * 1000 * 2
    assert work.products == pytest.approx(4 * 2 / 3 * 1e9 + 4 * 1024 * 1e6 + 5 * 4 * 10 * 1024 * 1000)
    assert pass_work(5, [one], 7).products == 2 * 5 * 7 + 7 * 1e6
    assert (work + Workload(1, 2)).columns == work.columns + 2


def test_time_follows_from_the_rate() -> None:
    rate = Rate(products=1e9, columns=100)
    assert rate.seconds(Workload(2e9, 300)) == pytest.approx(5)
    assert rate.equivalent(Workload(2e9, 300)) == pytest.approx(5e9)


def test_the_rate_is_that_of_this_machine_now() -> None:
    measured_rate.cache_clear()
    rate = measured_rate("cpu")
    assert 1e7 < rate.products < 1e14
    assert 1 < rate.columns < 1e8
    assert measured_rate("cpu") is rate
    assert torch.get_num_threads() >= 1
