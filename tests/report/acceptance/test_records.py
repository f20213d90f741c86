"""One replay at the largest K tells the verify steps of every smaller one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.reference.accept_length import Counts, walk
from draftconv.report.acceptance.records import AcceptanceRecord
from tests.report.acceptance.made import ONE, record

LONGEST = 5
accepted = st.lists(st.integers(0, LONGEST), max_size=30)
missing = st.sets(st.integers(0, 30 + LONGEST - 1))


@pytest.mark.parametrize(
    ("depth", "steps"),
    [
        (1, [(0, 1), (2, 1), (4, 0), (5, 1)]),
        (2, [(0, 2), (3, 1), (5, 2)]),
        (3, [(0, 2), (3, 1), (5, 3)]),
        (4, [(0, 2), (3, 1), (5, 4)]),
    ],
)
def test_steps_by_hand(depth: int, steps: list[tuple[int, int]]) -> None:
    """2, 0, 3, 1, 0, 4, 0 are accepted from the roots 0 … 6."""
    assert list(ONE.steps(depth)) == [(root, count, 1) for root, count in steps]
    assert ONE.counts(depth) == Counts.of([count for _, count in steps], depth)


def test_a_smaller_k_starts_steps_where_a_larger_one_has_none() -> None:
    made = record("a", [3, 0, 2, 1, 0])
    assert [list(made.counts(k).histogram) for k in (1, 2, 3)] == [[1, 2], [0, 1, 1], [1, 0, 0, 1]]


@given(accepted, st.integers(1, LONGEST))
def test_counts_are_those_of_a_walk_that_is_cut(values: list[int], depth: int) -> None:
    cut = [min(value, depth) for value in values]
    root, histogram = 0, [0] * (depth + 1)
    while root < len(cut):
        histogram[cut[root]] += 1
        root += cut[root] + 1
    assert record("a", values).counts(depth).histogram == tuple(histogram)


def test_a_root_knows_its_context() -> None:
    """The prompt, the token that the target gives first, and one more for every root."""
    assert [ONE.known(root) for root in (0, 1, 6)] == [4, 5, 10]


# ── a perfect drafter with the map ─────────────────────────────────────────────────


def test_perfect_steps_by_hand() -> None:
    """Tokens 3 and 8 after the first are none of the map's; roots 0 … 6."""
    assert list(ONE.perfect_steps(2)) == [(0, 2, None), (3, 0, 7), (4, 2, None)]
    assert list(ONE.perfect_steps(4)) == [(0, 3, 7), (4, 4, None)]
    assert list(replace(ONE, unmapped=((0, 7), (1, 7))).perfect_steps(3)) == [(0, 0, 7), (1, 0, 7), (2, 3, None),
                                                                            (6, 3, None)]  # fmt: skip


def test_undraftable_tokens_are_those_of_the_text_not_beyond_it() -> None:
    assert ONE.undraftable() == 1
    assert replace(ONE, unmapped=((6, 1), (7, 1))).undraftable() == 1
    assert replace(ONE, unmapped=()).undraftable() == 0


def perfect(made: AcceptanceRecord, depth: int) -> Counts:
    return Counts.of((count for _, count, _ in made.perfect_steps(depth)), depth)


@given(st.integers(1, 30), missing, st.integers(1, LONGEST))
def test_a_perfect_step_ends_at_what_the_map_lacks_and_nowhere_else(roots: int, lacks: set[int], depth: int) -> None:
    made = record("a", [0] * roots, unmapped=tuple((i, 100 + i) for i in sorted(lacks)))
    steps = list(made.perfect_steps(depth))
    longest = [next((j for j in range(depth) if root + j in lacks), depth) for root in range(roots)]
    assert [root for root, _, _ in steps] == list(walk(longest))
    for root, count, ended in steps:
        assert not {*range(root, root + count)} & lacks
        assert ended == (None if count == depth else 100 + root + count)
        assert count == depth or root + count in lacks


@given(st.integers(1, 30), st.integers(1, LONGEST))
def test_with_every_token_a_perfect_drafter_has_k_accepted_of_k(roots: int, depth: int) -> None:
    assert perfect(record("a", [0] * roots), depth).accept_length == depth + 1
