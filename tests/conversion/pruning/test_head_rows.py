"""The rows of a head, of every kind of drafter and at full size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from make_synthetic import read_spec, write_checkpoint

from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.pruning.head_rows import HeadRows
from draftconv.drafter.step_bytes import step_bytes
from draftconv.errors import Refused, UsageError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from tests import opening, tiny
from tests.api.conftest import Source

SPECS = Path(__file__).parents[3] / "scripts/specs"


def test_a_map_says_which_tokens_there_are(source: Source) -> None:
    head = HeadRows.of(opening.read(source("modelopt-layers", "frequency")), None)
    assert head.ids == tiny.ASCENDING
    assert (head.vocab, head.row_bytes, head.table) == (tiny.VOCAB, 2 * tiny.BASE.hidden, None)
    assert HeadRows.of(opening.read(source("torchspec-native", "llama")), None).ids == tuple(range(tiny.VOCAB))


def test_a_map_that_is_not_usable_is_refused(source: Source) -> None:
    drafter = replace(opening.read(source("torchspec-native", "reduced")), maps=None)
    with pytest.raises(Refused, match="its map is missing or not usable") as caught:
        HeadRows.of(drafter, None)
    assert "draftconv convert --repair" in caught.value.cure


def test_without_a_head_the_targets_is_needed(source: Source) -> None:
    drafter = opening.read(source("torchspec-native", "llama"))
    with pytest.raises(UsageError, match="has no lm_head of its own"):
        HeadRows.of(replace(drafter, facts=replace(drafter.facts, own_head=False)), None)


def test_kimi_size(tmp_path: Path) -> None:
    """The figures of docs/prune.md: 3.80 GB a step, 1.91 GB with 32,000 rows."""
    write_checkpoint(read_spec(SPECS / "kimi-k2.5-eagle3.json"), tmp_path / "kimi", sparse=True)
    drafter = read_drafter(open_checkpoint(tmp_path / "kimi"), ReadOptions(aux_convention="after"))
    head, whole = HeadRows.of(drafter, None), step_bytes(drafter, lent_head=False).per_step(3)
    assert len(head.ids) * head.row_bytes == 163840 * 7168 * 2
    assert round(whole / 1e9, 2) == 3.80
    assert round((whole - (len(head.ids) - 32_000) * head.row_bytes) / 1e9, 2) == 1.91
