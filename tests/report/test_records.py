from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.errors import BadReport
from draftconv.reference.accept_length import Counts
from draftconv.report.records import Record, lines, paired, read_lines, run_twice

ONE = Record("ref", "a/0", "a", "coding", 12, 64, Counts((3, 2, 1, 4)), "ab" * 32)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
RECORDS = st.builds(
    Record,
    TEXT,
    TEXT,
    TEXT,
    TEXT,
    st.integers(0, 9),
    st.integers(0, 9),
    st.builds(Counts, st.lists(st.integers(0, 99), min_size=2, max_size=5).map(tuple)),
    TEXT,
)


def encode(*records: Record) -> bytes:
    return "".join(f"{line}\n" for line in lines(records)).encode()


def line(**changes: object) -> bytes:
    return json.dumps(json.loads(encode(ONE)) | changes).encode()


def test_a_line_says_everything_by_name() -> None:
    assert json.loads(encode(ONE)) == {
        "arm": "ref",
        "id": "a/0",
        "cluster": "a",
        "category": "coding",
        "prompt_tokens": 12,
        "counted_tokens": 64,
        "depth": 3,
        "steps": 10,
        "accepted": 16,
        "histogram": [3, 2, 1, 4],
        "tokens": "ab" * 32,
    }


@given(st.lists(RECORDS, max_size=4))
def test_lines_come_back(records: list[Record]) -> None:
    data = encode(*records)
    assert data.isascii()
    assert data.count(b"\n") == len(records)
    assert list(read_lines(data)) == records


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"{", "line 1 is not valid JSON"),
        (b"[]", "line 1 holds a JSON list"),
        (line()[:-1] + b', "arm": "x"}', "the key arm twice"),
        (line(steps=11), "contradict the histogram"),
        (line(accepted=17), "contradict the histogram"),
        (line(depth=4), "contradict the histogram"),
        (line(histogram=[3, 2, -1, 4]), "histogram.2: input should be greater"),
        (line(histogram=[3, 2, 1.5, 4]), "contradict the histogram"),  # expected steps need not be whole
        (line(histogram=[3, 2, "1", 4]), "histogram.2"),
        (line(arm=None), "arm: input should be a valid string"),
        (line(more=1), "more: extra inputs"),
        (line() + b"\n" + line(steps=1), "line 2: depth, steps or accepted"),
    ],
)
def test_lines_that_are_none(data: bytes, what: str) -> None:
    with pytest.raises(BadReport, match=what):
        list(read_lines(data))


def test_pairs_are_in_the_order_of_the_reference() -> None:
    two = replace(ONE, id="b/0", cluster="b")
    records = (ONE, two, replace(two, arm="cand", counts=Counts((1, 1, 1, 1))), replace(ONE, arm="cand"))
    pairs = paired(records, "ref", "cand")
    assert [(pair.id, pair.equal) for pair in pairs] == [("a/0", True), ("b/0", False)]


@pytest.mark.parametrize(
    "others",
    [
        (),
        (replace(ONE, arm="cand", id="b"),),
        (replace(ONE, arm="cand", cluster="b"),),
        (replace(ONE, arm="cand", category="b"),),
        (replace(ONE, arm="cand"), replace(ONE, arm="cand")),
        (replace(ONE, arm="cand"), replace(ONE, arm="cand", id="b")),
    ],
)
def test_arms_with_other_requests_are_no_pairs(others: tuple[Record, ...]) -> None:
    with pytest.raises(BadReport):
        paired((ONE, *others), "ref", "cand")


def test_the_reference_may_be_run_again_on_some_requests() -> None:
    records = (ONE, replace(ONE, id="b/0", cluster="b"), replace(ONE, arm="again"))
    assert [pair.id for pair in run_twice(records, "ref", "again")] == ["a/0"]
    with pytest.raises(BadReport, match="same requests"):
        run_twice((*records, replace(ONE, arm="again", id="c")), "ref", "again")
