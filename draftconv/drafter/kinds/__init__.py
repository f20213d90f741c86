"""Kinds of drafters, one module each: its marks, its tensors, and where its forward pass is.

What engines make of a kind, they say themselves (`Engine.kinds`); one that no engine speaks of is undecided everywhere.
"""

from __future__ import annotations

from draftconv.drafter.facts import Facts
from draftconv.drafter.kinds import eagle3, eagle31
from draftconv.drafter.kinds.kind import DrafterKind

__all__ = ["KINDS", "DrafterKind", "kind_of"]

KINDS: list[DrafterKind] = [eagle31.KIND, eagle3.KIND]
"""The first that holds is meant, so the more special ones come first."""


def kind_of(facts: Facts) -> DrafterKind:
    """What kind of drafter these are the facts of."""
    return next(kind for kind in KINDS if kind.holds(facts))
