"""Counts that an engine reports: taken when they agree with each other and with the text, refused otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.engines.request_output import clipped, counted, explained, first_split
from draftconv.errors import Void
from draftconv.reference.accept_length import Counts

STEPS = st.lists(st.integers(0, 3), min_size=1, max_size=20)


@given(STEPS, st.integers(0, 3))
def test_an_engines_counts_are_taken_as_they_are(accepted: list[int], short: int) -> None:
    """A histogram may end early, and the last step may reach beyond the text."""
    whole = Counts.of(accepted, 3)
    histogram = [int(steps) for steps in whole.histogram[: max(accepted) + 1]]
    found = counted(histogram, len(accepted), sum(accepted), 3)
    length = 1 + len(accepted) + sum(accepted) - min(short, accepted[-1])
    assert explained(range(length), found).counts == whole


@given(STEPS, st.integers(0, 3))
def test_a_clipped_count_is_what_the_text_says(accepted: list[int], short: int) -> None:
    surplus = min(short, accepted[-1])
    length = 1 + len(accepted) + sum(accepted) - surplus
    found = clipped(range(length), accepted, 3).counts
    assert (found.steps, found.accepted) == (len(accepted), length - 1 - len(accepted))
    cut = [*accepted[:-1], accepted[-1] - surplus]
    assert clipped(range(length), cut, 3).counts == found  # an engine that cuts for itself counts the same


@pytest.mark.parametrize(
    ("histogram", "steps", "accepted", "told"),
    [
        ((1, 2, 0, 0), 4, 2, "4 steps and 2 accepted tokens, its histogram 3 and 2"),
        ((1, 2, 0, 0), 3, 3, "3 steps and 3 accepted"),
        ((1, 2, 0, 0, 1), 4, 6, "steps with 4 accepted tokens, 3 are drafted"),
        ((4, -1, 0, 0), 3, -1, "negative"),
    ],
)
def test_counts_that_contradict_themselves(histogram: tuple[int, ...], steps: int, accepted: int, told: str) -> None:
    with pytest.raises(Void, match=told):
        counted(histogram, steps, accepted, 3)


@pytest.mark.parametrize(
    ("length", "accepted", "told"),
    [
        (10, [], "wrote 10 tokens and reports no draft"),
        (10, [3, 1], "2 steps with 4 accepted tokens make 7 tokens, the text has 10"),
        (10, [3, 3, 3, 3], "make 17 tokens"),
    ],
)
def test_counts_of_another_text(length: int, accepted: list[int], told: str) -> None:
    with pytest.raises(Void, match=told):
        explained(range(length), Counts.of(accepted, 3))


def test_a_stop_token_may_be_left_out() -> None:
    counts = Counts.of([3, 3], 3)
    with pytest.raises(Void):
        explained(range(5), counts)
    assert explained(range(5), counts, hidden=1)


def test_a_step_beyond_the_end_is_refused() -> None:
    with pytest.raises(Void, match="make 2 tokens more than the text"):
        clipped(range(5), [3, 1], 3)  # 7 tokens, and the last step accepted only one


def test_where_texts_part() -> None:
    assert first_split([1, 2, 3], [1, 2, 3]) is None
    assert first_split([1, 2, 3], [1, 5, 3]) == 1
    assert first_split([1, 2], [1, 2, 3]) == 2
