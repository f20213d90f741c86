"""The tokens that a pruned head can draft, as a conversion takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """What the pass `prune` keeps.

    Attributes:
        ids: of the target, ascending.
        record: `pruning` of draftconv.json: how they were chosen. Nothing is made again from it.
    """

    ids: tuple[int, ...]
    record: Mapping[str, object] = field(default_factory=dict)
