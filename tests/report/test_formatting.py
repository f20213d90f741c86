"""What a report says in a sentence: all that was shown, and not only that the gate is passed."""

from __future__ import annotations

import pytest

from draftconv.report.formatting import sentence
from draftconv.report.model import Comparison
from draftconv.report.tables import headline
from draftconv.report.verdict import EXACT, Gate, judge
from tests.report.counted import pairs
from tests.report.simulated import make


def compared(candidate: int | tuple[int, ...], gate: Gate) -> Comparison:
    return Comparison("bf16", "int4", judge(pairs(40, candidate), gate, how="replay"), ())


@pytest.mark.parametrize(
    ("candidate", "shift", "end"),
    [
        (80, "", ": within 2 % either way, and no difference is shown."),
        ((79, 81), "", ": within 2 % either way, and no difference is shown."),
        (78, "measurably lower", ": within 2 % either way, and measurably lower."),
        (82, "measurably higher", ": within 2 % either way, and measurably higher."),
        (86, "measurably higher", ": a loss of 2 % is ruled out, and it is measurably higher."),
        ((77, 93), "measurably higher", ": a loss of 2 % is ruled out, and it is measurably higher."),
        ((74, 89), "", "a loss of 2 % is ruled out."),
    ],
)
def test_a_pass_says_which_way_it_went(candidate: int | tuple[int, ...], shift: str, end: str) -> None:
    found = compared(candidate, Gate(0.02))
    assert found.verdict.shift == shift
    assert sentence(found).endswith(end)


def test_equal_counts_have_no_direction() -> None:
    found = compared(80, EXACT)
    assert found.verdict.shift == ""
    assert sentence(found) == "int4 drafts exactly as bf16 does: the counts of all 40 requests are equal."


def test_the_table_says_it_under_the_verdict() -> None:
    lower = make(prompts=400, tokens=64, loss=0.01)
    assert [row[-1] for row in headline(lower).rows] == ["reference", "equivalent\nmeasurably lower"]
    worse = make(prompts=40, tokens=64, loss=0.08)
    assert [row[-1] for row in headline(worse).rows] == ["reference", "fail"]
