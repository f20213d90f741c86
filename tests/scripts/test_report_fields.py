from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from report_fields import described, tables, type_label

from draftconv.report import RunInfo


@dataclass
class Sample:
    """A thing
    in two lines.

    More of it.

    Attributes:
        one: the first; has `two` in it. `two`: the second,
            which goes on: here.
        three, four: both.
    """

    one: int
    two: str
    three: float
    four: float
    five: bool


def test_what_a_docstring_says_of_each_field() -> None:
    assert described(Sample, ["one", "two", "three", "four", "five"]) == (
        "A thing in two lines.",
        {
            "one": "the first; has `two` in it",
            "two": "the second, which goes on: here",
            "three": "both",
            "four": "both",
        },
    )


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int | None, "integer or null"),
        (tuple[RunInfo, ...], "list of [RunInfo](#runinfo)"),
        (dict[str, float], "object: name to number"),
        (Literal["a", 2], "`a` or `2`"),
    ],
)
def test_types_in_words(hint: object, text: str) -> None:
    assert type_label(hint) == text


def test_every_class_of_the_files_is_there_and_explained() -> None:
    found = {name: (about, rows) for name, about, rows in tables()}
    assert {
        "RecordLine",
        "Document",
        "RunInfo",
        "ArmInfo",
        "ParityVerdict",
        "Estimate",
        "Interval",
        "Place",
        "Control",
    } <= found.keys()
    assert all(about for about, _ in found.values())
    for name in ("RecordLine", "Document", "RunInfo", "ArmInfo", "Comparison", "Place"):
        assert all(meaning for _, _, meaning in found[name][1]), name
