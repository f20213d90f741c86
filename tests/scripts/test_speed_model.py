"""The comparison of predicted and measured speed: its figures, and a model whose best K is too slow."""

from __future__ import annotations

import pytest
from speed_model import BOUND, Comparison, Measured


def compared(predicted: list[float], rates: list[float]) -> Comparison:
    """Of K = 1, 2 …; ten seconds each, the target alone at 100 tokens/s."""
    measured = {0: Measured(10.0, 1000, 1000)}
    measured |= {k: Measured(10.0, round(10 * rate), 500) for k, rate in enumerate(rates, 1)}
    return Comparison(dict(enumerate(predicted, 1)), measured)


def test_the_same_best() -> None:
    found = compared([110, 130, 120], [112, 128, 121])
    assert (found.best, found.slower) == (2, 0)
    assert [*found.lines()][2:6] == [
        "| none | 10.00 | | 100.0 | |",
        "| 1, told | 20.00 | 110.0 | 112.0 | 0.982 |",
        "| 2 | 20.00 | 130.0 | 128.0 | 1.016 |",
        "| 3 | 20.00 | 120.0 | 121.0 | 0.992 |",
    ]


def test_another_best_is_as_much_slower_as_was_measured() -> None:
    found = compared([110, 131, 130], [112, 120, 130])
    assert found.best == 2
    assert found.slower == pytest.approx(1 - 120 / 130)
    assert found.slower > BOUND
    assert [*found.lines()][-1] == (
        "The model names K = 2; the fastest measured is K = 3. The model's is 7.7 % slower than it."
    )


def test_requests_add_up() -> None:
    one = Measured()
    one.add(0.5, 63, 30)
    one.add(0.7, 63, 34)
    assert (one.rate, one.step) == pytest.approx((126 / 1.2, 1200 / 64))
