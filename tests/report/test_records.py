from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.errors import BadReport
from draftconv.reference.accept_length import Counts
from draftconv.report.records import Record, lines, paired, paired_by_context, read_lines, run_twice

ONE = Record("ref", "a/0", "a", "coding", 12, 64, Counts((3, 2, 1, 4)), "ab" * 32)
SHORT, LONG = "8 to 15", "16 to 31"
PLACED = replace(ONE, contexts={SHORT: Counts((1, 0, 1, 0)), LONG: Counts((2, 2, 0, 4))})
"""The same, and where its steps started."""
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


def test_contexts_come_back() -> None:
    data = encode(PLACED, ONE)
    assert json.loads(data.splitlines()[0])["contexts"] == {SHORT: [1, 0, 1, 0], LONG: [2, 2, 0, 4]}
    assert list(read_lines(data)) == [PLACED, ONE]
    expected = replace(
        PLACED, counts=Counts((0.3, 0.7)), contexts={SHORT: Counts((0.1, 0.4)), LONG: Counts((0.2, 0.3))}
    )
    assert list(read_lines(encode(expected))) == [expected]  # 0.1 + 0.2 is not 0.3


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
        (line(contexts={SHORT: [3, 2, 1, 3]}), "its contexts contradict the histogram"),
        (line(contexts={SHORT: [3, 2, 5]}), "its contexts contradict the histogram"),
        (line(contexts={SHORT: [3, 2, 1, 4], LONG: [0, 0, 1, 0]}), "its contexts contradict the histogram"),
        (line(contexts={SHORT: [3, 2, 1, "4"]}), "contexts.8 to 15.3"),
        (line(contexts={"short": [3, 2, 1, 4]}), "string should match pattern"),
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


def test_pairs_by_context_are_the_steps_there() -> None:
    """One request has no long step of the candidate: nothing is compared with nothing."""
    ours = [PLACED, replace(PLACED, id="b/0", cluster="b")]
    short = {SHORT: Counts((3, 2, 1, 4))}
    theirs = [replace(PLACED, arm="cand"), replace(ours[1], arm="cand", contexts=short)]
    found = paired_by_context([*ours, *theirs], "ref", "cand")
    assert list(found) == [SHORT, LONG]
    assert [(pair.id, pair.reference, pair.candidate) for pair in found[SHORT]] == [
        ("a/0", PLACED.contexts[SHORT], PLACED.contexts[SHORT]),
        ("b/0", PLACED.contexts[SHORT], short[SHORT]),
    ]
    assert [pair.id for pair in found[LONG]] == ["a/0"]


def test_contexts_that_some_do_not_tell_are_not_shown() -> None:
    other = replace(PLACED, arm="cand")
    assert paired_by_context([PLACED, other], "ref", "cand")
    assert paired_by_context([PLACED, replace(other, contexts={})], "ref", "cand") == {}
    assert paired_by_context([PLACED, other, replace(ONE, arm="another")], "ref", "cand")
    without = {"id": "b/0", "cluster": "b", "counts": Counts((0, 0, 0, 0)), "contexts": {}}  # a text of one token
    assert paired_by_context([PLACED, other, *(replace(r, **without) for r in (PLACED, other))], "ref", "cand")  # type: ignore[arg-type]
