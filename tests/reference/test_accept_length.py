"""The one definition of accept length."""

from __future__ import annotations

import math

import pytest

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts


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
