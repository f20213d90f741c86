"""The one definition of accept length."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts, expected_steps, walk


def test_counts_of_a_request() -> None:
    counts = Counts.of([3, 0, 1, 3], depth=3)
    assert counts == Counts((1, 1, 0, 2))
    assert (counts.depth, counts.steps, counts.accepted) == (3, 4, 7)
    assert counts.accept_length == 1 + 7 / 4


def test_rates_by_depth() -> None:
    counts = Counts((1, 1, 0, 2))
    assert [counts.reached(j) for j in range(4)] == [1, 0.75, 0.5, 0.5]
    assert [counts.conditional(j) for j in (1, 2, 3)] == [0.75, 2 / 3, 1]
    assert math.isnan(Counts((3, 0, 0)).conditional(2))


def test_accept_length_is_pooled_not_averaged() -> None:
    requests = [Counts((1, 0, 0, 1)), Counts((8, 0, 0, 0))]
    assert Counts.pooled(requests).accept_length == 1 + 3 / 10
    assert sum(request.accept_length for request in requests) / 2 == 1.75


@pytest.mark.parametrize("parts", [[], [Counts((1, 0)), Counts((1, 0, 0))]])
def test_what_cannot_be_pooled(parts: list[Counts]) -> None:
    with pytest.raises(UsageError, match="pool"):
        Counts.pooled(parts)


def test_no_step_has_no_accept_length() -> None:
    with pytest.raises(UsageError, match="no verify step"):
        _ = Counts((0, 0)).accept_length


def test_walk_goes_on_after_the_bonus_token() -> None:
    assert list(walk([0, 2, 3, 3, 0, 1])) == [0, 1, 4, 5]
    assert list(walk([3])) == [0]
    assert list(walk([])) == []


CHANCES = st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_certain_odds_are_counted_steps(accepted: list[int]) -> None:
    odds = [[float(j < count) for j in range(3)] for count in accepted]
    assert [step[:2] for step in expected_steps(odds, 3)] == [(root, accepted[root]) for root in walk(accepted)]
    assert {chance for *_, chance in expected_steps(odds, 3)} == {1.0}


def test_expected_steps_by_hand() -> None:
    odds = [[0.5, 0.25], [1.0, 0.0], [0.0, 1.0]]
    # from root 0: nothing 1/2, one token 1/2 · 3/4, two 1/2 · 1/4; root 1 goes on to the end, root 2 too
    assert list(expected_steps(odds, 2)) == [
        (0, 0, 0.5),
        (0, 1, 0.375),
        (0, 2, 0.125),
        (1, 1, 0.5),
        (2, 0, 0.375),
    ]
    counts = Counts.weighted(((a, chance) for _, a, chance in expected_steps(odds, 2)), 2)
    assert (counts.steps, counts.accepted) == (1.875, 0.375 + 0.25 + 0.5)


@given(CHANCES)
def test_expected_steps_are_those_of_every_way_through(odds: list[list[float]]) -> None:
    """By enumeration: each way through has a probability, and they add up."""

    def ways(root: int) -> float:
        """Expected steps from here on."""
        if root >= len(odds):
            return 0.0
        total, chain = 1.0, 1.0
        for accepted, chance in enumerate(odds[root]):
            total += chain * (1 - chance) * ways(root + accepted + 1)
            chain *= chance
        return total + chain * ways(root + len(odds[root]) + 1)

    assert sum(chance for *_, chance in expected_steps(odds, 3)) == pytest.approx(ways(0))
