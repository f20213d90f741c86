"""d2t and t2d, by what they mean: the set of target tokens, in row order."""

from __future__ import annotations

from collections.abc import Iterator

from draftconv.drafter.drafter import Drafter
from draftconv.drafter.names import canonical_name
from draftconv.drafter.vocabulary import VocabMap
from draftconv.verification.claims import Claims
from draftconv.verification.compared import ComparedItem
from draftconv.verification.remaking import Remade

WHAT = "d2t and t2d"


def follows_map(out: Drafter, remade: Remade) -> tuple[int, ...] | None:
    """Which row each row of lm_head must be, when the output maps the same tokens in another order."""
    ours, theirs = out.maps.map if out.maps else None, remade.work.map
    if ours is None or theirs is None or ours.ids == theirs.ids or sorted(ours.ids) != sorted(theirs.ids):
        return None
    row_of = {target: row for row, target in enumerate(theirs.ids)}
    return tuple(row_of[target] for target in ours.ids)


def compare_maps(out: Drafter, source: Drafter, remade: Remade, claims: Claims) -> Iterator[ComparedItem]:
    """The maps of the output beside those that the source gives."""
    ours, theirs = out.maps.map if out.maps else None, remade.work.map
    faults = [*(detail for _, detail in out.maps.faults), *_mask_faults(out, ours)] if out.maps else []
    if faults:
        yield from (ComparedItem(WHAT, "different", detail) for detail in faults)
    elif not (out.facts.reduced_vocab or source.facts.reduced_vocab):
        if (ours is None) != (source.maps is None or source.maps.map is None):
            yield ComparedItem(WHAT, "declared", "the identity of a full vocabulary, which changes nothing")
    elif ours is None or theirs is None or sorted(ours.ids) != sorted(theirs.ids):
        item = claims.tensor("d2t", out.tensors.get("d2t"))
        yield item or ComparedItem(WHAT, "different", "they reach other target tokens")
    elif any(change.kind == "fact" and change.what == "draft_vocab" for change in remade.changes):
        why = remade.why("d2t", "pruned", "added")
        yield ComparedItem(WHAT, "declared", f"pruned, and every kept row stands for the same token: {why}")
    elif (why := remade.why("d2t", "repaired")) is not None:
        yield ComparedItem(WHAT, "declared", f"repaired: {why}")
    elif source.maps is not None and source.maps.map is not None and ours.ids == source.maps.map.ids:
        yield ComparedItem(WHAT, "equal", "every draft id stands for the same token")
    else:
        yield ComparedItem(WHAT, "declared", "the same tokens in another order, lm_head rows along with them")


def _mask_faults(out: Drafter, mapped: VocabMap | None) -> Iterator[str]:
    """A t2d whose bytes are not those of d2t's mask, also where every reader would take it so."""
    for name, ref in out.checkpoint.tensors.items():
        if canonical_name(name) == "t2d" and ref.dtype == "BOOL" and mapped and ref.read() != mapped.t2d():
            yield f"{name} is not the mask of d2t, byte for byte"
