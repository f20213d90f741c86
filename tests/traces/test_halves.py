"""A trace in two halves: by conversation, evenly over categories, the same every time."""

from __future__ import annotations

import pytest

from draftconv.errors import UsageError
from draftconv.traces.halves import split_halves
from draftconv.traces.trace import TraceEntry


def entry(cluster: str, category: str, turn: int = 1) -> TraceEntry:
    return TraceEntry(f"{cluster}/{turn}", cluster, category, f"{cluster}-{turn}.safetensors", 2, 1, "", "")


def test_conversations_are_dealt_out_category_by_category() -> None:
    entries = [entry(f"{i:02}", "code" if i % 3 else "prose", turn) for i in range(12) for turn in (1, 2)]
    halves = split_halves(entries)
    assert sorted([*halves.choosing, *halves.judging], key=entries.index) == entries
    assert not {e.cluster for e in halves.choosing} & {e.cluster for e in halves.judging}
    for category, whole in (("code", 8), ("prose", 4)):
        for half in (halves.choosing, halves.judging):
            assert len({e.cluster for e in half if e.category == category}) == whole // 2
    assert split_halves(entries) == halves
    assert list(halves.choosing) == [e for e in entries if e in halves.choosing]


def test_odd_categories_do_not_all_give_their_rest_to_one_half() -> None:
    halves = split_halves([entry(f"{i}", f"kind {i}") for i in range(7)])
    assert (len(halves.choosing), len(halves.judging)) == (4, 3)


def test_a_single_conversation_has_no_halves() -> None:
    with pytest.raises(UsageError, match="the trace holds 1 conversation"):
        split_halves([entry("a", "", 1), entry("a", "", 2)])
