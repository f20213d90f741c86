"""Typed reading of a config.json that nobody has checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint

READERS: dict[str, Callable[[Config], object]] = {
    "integer": lambda c: c.integer("k"),
    "size": lambda c: c.size("k"),
    "number": lambda c: c.number("k"),
    "flag": lambda c: c.flag("k"),
    "text": lambda c: c.text("k"),
    "integers": lambda c: c.integers("k"),
    "numbers": lambda c: c.numbers("k"),
    "texts": lambda c: c.texts("k"),
    "section": lambda c: dict(c.section("k").data),
}
ABSENT: dict[str, object] = dict.fromkeys(READERS) | {"texts": (), "section": {}}
VALUES: tuple[object, ...] = (
    0, 7, -3, 1 << 40, 10**400, 2.0, 2.5, float("nan"), float("inf"), True, "7", "", [], [7], [1.5], ["a"], [True],
    [1 << 40], [10**400], [float("nan")], {}, {"a": 1},
)  # fmt: skip
ACCEPTED: dict[str, dict[str, object]] = {
    "integer": {"0": 0, "7": 7, "-3": -3, str(1 << 40): 1 << 40, str(10**400): 10**400, "2.0": 2},
    "size": {"7": 7, "2.0": 2},
    "number": {"0": 0.0, "7": 7.0, "-3": -3.0, str(1 << 40): float(1 << 40), "2.0": 2.0, "2.5": 2.5},
    "flag": {"True": True},
    "text": {"'7'": "7", "''": ""},
    "integers": {"[]": (), "[7]": (7,)},
    "numbers": {"[]": (), "[7]": (7.0,), "[1.5]": (1.5,), str([1 << 40]): (float(1 << 40),)},
    "texts": {"[]": (), "['a']": ("a",)},
    "section": {"{}": {}, "{'a': 1}": {"a": 1}},
}


@pytest.mark.parametrize("reader", READERS)
def test_absent_and_null_are_the_same(reader: str) -> None:
    for data in ({}, {"k": None}):
        assert READERS[reader](Config(data)) == ABSENT[reader]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_each_type_by_each_reader(reader: str, value: object) -> None:
    config = Config({"k": value}, "config.json: part")
    if repr(value) in ACCEPTED[reader]:
        found, wanted = READERS[reader](config), ACCEPTED[reader][repr(value)]
        assert (found, type(found)) == (wanted, type(wanted))
        return
    with pytest.raises(BadCheckpoint) as caught:
        READERS[reader](config)
    assert caught.value.what.startswith("config.json: part: k")
    assert caught.value.cure
    assert len(caught.value.what) < 300


def test_presence_counts_null() -> None:
    assert Config({"k": None}).has("k")
    assert not Config({}).has("k")


def test_sections_name_their_place() -> None:
    with pytest.raises(BadCheckpoint, match=r"config\.json: eagle_config: ids is not a list of integers"):
        Config({"eagle_config": {"ids": "1,2"}}).section("eagle_config").integers("ids")
