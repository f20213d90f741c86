"""Brings the vocabulary maps into the form that the layout's reader indexes."""

from __future__ import annotations

from dataclasses import replace

from draftconv.conversion.passes.base import Context
from draftconv.conversion.working_drafter import WorkingDrafter, map_tensors, permute_rows
from draftconv.drafter.vocabulary import VocabMap
from draftconv.layouts.base import Spelling


def run(work: WorkingDrafter, context: Context) -> WorkingDrafter:
    """Order, dtype and mask as the layout has them.

    The lm_head order of an earlier conversion is undone when this one returns to the layout it came from.
    """
    spelling = context.writer.spelling
    recorded = context.returning.order if context.returning else None
    mapped = work.map
    if mapped is None:
        return _identity(work, spelling)
    rows = range(len(mapped.ids))
    if recorded is not None and spelling.order == "any" and len(recorded) == len(rows):
        inverse = tuple(sorted(rows, key=recorded.__getitem__))
        work, mapped = _permute(work, mapped, inverse, "back to the order recorded in draftconv.json")
    elif spelling.order == "ascending" and mapped.order == "unordered":
        _, order = mapped.ascending()
        work, mapped = _permute(work, mapped, order, "this layout's loader needs ascending target ids")
    if spelling.t2d and "t2d" not in work.tensors:
        work = work.declare("added", "t2d", "rebuilt from d2t")
    if not spelling.t2d and "t2d" in work.tensors:
        work = work.without("t2d").declare("dropped", "t2d", "follows from d2t; no engine reads it")
    for tensor in map_tensors(mapped, t2d=spelling.t2d):
        # Written anew even if nothing moved: some producers store int32.
        stored = work.tensors.get(tensor.name)
        if stored is not None and stored.dtype != tensor.dtype:
            work = work.declare("cast", tensor.name, f"{stored.dtype} → {tensor.dtype}, every value exact")
        work = work.put(tensor)
    return work


def _identity(work: WorkingDrafter, spelling: Spelling) -> WorkingDrafter:
    if spelling.maps != "always" or work.facts.reduced_vocab:
        return work
    identity = VocabMap(tuple(range(work.facts.vocab)), work.facts.vocab)
    work = work.put(*map_tensors(identity, t2d=spelling.t2d))
    return work.declare("added", "d2t and t2d", "the identity, which this layout always stores")


def _permute(
    work: WorkingDrafter, mapped: VocabMap, order: tuple[int, ...], why: str
) -> tuple[WorkingDrafter, VocabMap]:
    """Draft id i becomes what draft id `order[i]` was: rows of lm_head and the map together."""
    moved = VocabMap(tuple(mapped.ids[row] for row in order), mapped.vocab)
    if head := work.tensors.get("lm_head.weight"):
        work = work.put(permute_rows(head, order))
    work = replace(work, map=moved, order=order).declare("permuted", "lm_head.weight", why)
    return work.with_facts(why, vocab_order="ascending" if moved.order == "full" else moved.order), moved
