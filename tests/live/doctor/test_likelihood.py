"""The formula, against sums that are written out."""

from __future__ import annotations

import math

import pytest

from draftconv.live.doctor.likelihood import NOISE, PRIOR, departure, elsewhere, log_likelihood
from draftconv.reference.accept_length import Counts

ONE, OTHER = Counts((3, 1)), Counts((2, 2))


def test_one_request_written_out() -> None:
    share = (3.5 / 5, 1.5 / 5)
    rates = [(count + PRIOR * part) / (4 + PRIOR) for count, part in zip((3, 1), share, strict=True)]
    equal, apart = 4 * rates[0] ** 3 * rates[1], 6 * rates[0] ** 2 * rates[1] ** 2
    mean = math.fsum(1 - noise + noise * equal for noise in NOISE) / len(NOISE)
    assert log_likelihood([ONE], [ONE]) == pytest.approx(math.log(mean))
    mean = math.fsum(noise * apart for noise in NOISE) / len(NOISE)
    assert log_likelihood([OTHER], [ONE]) == pytest.approx(math.log(mean))


def test_every_request_that_is_equal_adds_to_it() -> None:
    rows = [Counts((10 + i, 5, i)) for i in range(20)]
    off = [Counts((10 + i, 4, i)) for i in range(20)]
    mixed = [rows[:n] + off[n:] for n in (0, 10, 19, 20)]
    chances = [log_likelihood(rows, replayed) for replayed in mixed]
    assert chances == sorted(chances)
    assert chances[-1] > chances[0] + 30


def test_the_share_of_steps_that_fall_elsewhere() -> None:
    assert elsewhere([ONE, OTHER], [ONE, OTHER]) == 0
    assert elsewhere([OTHER, OTHER], [ONE, OTHER]) == pytest.approx(1 / 4)
    assert elsewhere([Counts((4, 0))], [Counts((0, 4))]) == 1
    assert elsewhere([Counts((40, 2))], [Counts((42, 0))]) == 1  # steps that accept nothing prove nothing
    assert elsewhere([Counts((0, 0))], [Counts((0, 0))]) == 0


def test_a_departure_and_its_error() -> None:
    sound = [Counts((10, 10, 10))] * 5
    worse = [Counts((10, 15 + i, 5 - i)) for i in range(5)]
    assert departure(sound, sound, 1) == pytest.approx((0, 0))
    first, second = departure(worse, sound, 1), departure(worse, sound, 2)
    assert first == pytest.approx((0, 0))
    assert second[0] == pytest.approx(15 / 100 - 0.5)
    without = [(15 - 5 + i) / 80 - 0.5 for i in range(5)]
    mean = sum(without) / 5
    assert second[1] == pytest.approx(math.sqrt(4 / 5 * sum((value - mean) ** 2 for value in without)))


def test_a_position_that_nothing_reaches() -> None:
    dead = [Counts((10, 0, 0))] * 3
    assert math.isnan(departure(dead, dead, 2)[0])
