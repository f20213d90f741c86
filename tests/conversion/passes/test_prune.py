"""Rows of the head that stay, in the order of their tokens, whatever order and operation they come from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from draftconv.checkpoint import Rows
from draftconv.conversion.passes import prune
from draftconv.conversion.passes.vocabulary import run as run_vocabulary
from draftconv.conversion.pruning.tokens import KeptTokens
from draftconv.conversion.working_drafter import WorkingDrafter, cast_tensor, output_blocks, start
from draftconv.errors import Refused, UsageError
from tests import opening, tiny
from tests.api.conftest import Source
from tests.conversion.passes.test_order import context

HEAD = "lm_head.weight"
IDS = (0, 5, 7, 28, 64, 99, 159)
"""Tokens that every variant below can draft."""


def pruned(work: WorkingDrafter, *ids: int) -> WorkingDrafter:
    told = replace(context(work.drafter, to="vllm"), pruning=KeptTokens(ids or IDS))
    return run_vocabulary(prune.run(work, told), told)


def rows(work: WorkingDrafter) -> list[bytes]:
    data = b"".join(output_blocks(work.tensors[HEAD]))
    size = len(data) // work.tensors[HEAD].shape[0]
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize(
    ("variant", "layout"),
    [("llama", "torchspec-native"), ("reduced", "torchspec-native"), ("frequency", "modelopt-layers")],
)
def test_each_row_is_that_of_its_token(variant: str, layout: str, source: Source) -> None:
    work = start(opening.read(source(layout, variant)))
    tokens = tiny.VARIANTS[variant].ids or tuple(range(tiny.VOCAB))
    before = dict(zip(tokens, rows(work), strict=True))
    done = pruned(work)
    assert rows(done) == [before[token] for token in IDS]
    assert isinstance(done.tensors[HEAD].operation, Rows)
    assert done.map is not None and done.map.ids == IDS
    offsets = torch.frombuffer(bytearray(b"".join(output_blocks(done.tensors["d2t"]))), dtype=torch.int64).tolist()
    assert [row + offset for row, offset in enumerate(offsets)] == list(IDS)
    assert (done.facts.draft_vocab, done.facts.vocab_order, done.facts.own_head) == (7, "ascending", True)
    declared = {(change.kind, change.what) for change in done.changes}
    assert {("pruned", HEAD), ("fact", "draft_vocab")} <= declared
    assert ("added" if variant == "llama" else "pruned", "d2t") in declared


def test_a_cast_comes_behind_it(source: Source) -> None:
    work = pruned(start(opening.read(source("torchspec-native", "f16"))))
    assert cast_tensor(work.tensors[HEAD], "F32").shape == (len(IDS), tiny.BASE.hidden)


def test_what_was_left_out_is_named(source: Source) -> None:
    done = pruned(start(opening.read(source("torchspec-native", "reduced"))))
    (why,) = {change.why for change in done.changes if change.what == HEAD}
    left = sorted({*tiny.ASCENDING} - {*IDS})
    assert why.startswith(f"7 of {len(tiny.ASCENDING)} rows; left out: {left[0]}, {left[1]}")
    assert why.endswith(f"and {len(left) - 6} more")


def test_a_token_without_a_row_is_refused(source: Source) -> None:
    work = start(opening.read(source("torchspec-native", "reduced")))
    with pytest.raises(Refused, match="no row for 2 of 3 tokens, such as 3"):
        pruned(work, 3, 4, 5)


def test_a_drafter_without_a_head_needs_the_targets(source: Source) -> None:
    drafter = opening.read(source("torchspec-native", "llama"))
    facts = replace(drafter.facts, own_head=False)
    headless = replace(drafter, facts=facts, tensors={n: ref for n, ref in drafter.tensors.items() if n != HEAD})
    with pytest.raises(UsageError, match="has no lm_head of its own"):
        pruned(start(headless))
