"""The law: loss = (1.0 … 1.25) (1 - 1/AL) m."""

from __future__ import annotations

import pytest

from draftconv.conversion.pruning.law import predicted_loss


@pytest.mark.parametrize(
    ("missing", "length", "least", "most"),
    [(0.0, 2.5, 0.0, 0.0), (0.04, 2.0, 0.02, 0.025), (0.08, 1.0, 0.0, 0.0), (0.1, 4.0, 0.075, 0.09375)],
)
def test_figures(missing: float, length: float, least: float, most: float) -> None:
    loss = predicted_loss(missing, length)
    assert (loss.least, loss.most) == pytest.approx((least, most))


def test_no_more_is_lost_than_drafting_brings() -> None:
    loss = predicted_loss(1.0, 2.0)
    assert (loss.least, loss.most) == (0.5, 0.5)


def test_in_words() -> None:
    assert str(predicted_loss(0.04, 2.0)) == "2.00 % to 2.50 %"
