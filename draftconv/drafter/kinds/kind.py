"""What a kind of drafter is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftconv.drafter.facts import Facts
from draftconv.drafter.rows import Row


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """One kind of drafter.

    Attributes:
        name: as records have it. `title`: for people.
        holds: true of the facts of such a drafter.
        rows: its tensors.
        forward: its forward pass, `module:class`, which needs torch and is imported when something runs.
    """

    name: str
    title: str
    holds: Callable[[Facts], bool]
    rows: tuple[Row, ...]
    forward: str
