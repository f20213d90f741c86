"""Steps by the tokens that are known when they start."""

from __future__ import annotations

import pytest

from draftconv.reference.accept_length import Counts
from draftconv.report.contexts import ascending, by_context, context_of


@pytest.mark.parametrize(
    ("known", "context"),
    [(1, "1 to 1"), (2, "2 to 3"), (3, "2 to 3"), (4, "4 to 7"), (1023, "512 to 1023"), (32768, "32768 to 65535")],
)
def test_contexts_lie_between_powers_of_two(known: int, context: str) -> None:
    assert context_of(known) == context


def test_a_step_counts_where_it_starts_with_all_that_it_accepts() -> None:
    """The step at 7 known tokens reaches 10, and counts below 8."""
    found = by_context([(5, 1, 1), (7, 2, 1), (10, 0, 1), (11, 2, 0.25)], 2)
    assert found == {"4 to 7": Counts((0, 1, 1)), "8 to 15": Counts((1, 0, 0.25))}
    assert list(found) == ["4 to 7", "8 to 15"]


def test_contexts_ascend_by_number() -> None:
    assert ascending(["128 to 255", "16 to 31", "1024 to 2047", "16 to 31"]) == [
        "16 to 31",
        "128 to 255",
        "1024 to 2047",
    ]
