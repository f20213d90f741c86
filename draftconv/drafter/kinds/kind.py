"""What a kind of drafter is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftconv.drafter.evidence import Evidence
from draftconv.drafter.facts import Facts
from draftconv.drafter.rows import Row


@dataclass(frozen=True, slots=True)
class Mark:
    """What a file of a kind shows; `lacking` is what to say of one that does not, and `why` it has to."""

    holds: Callable[[Evidence], bool]
    lacking: str
    why: str


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """One kind of drafter.

    Attributes:
        name: as records have it. `title`: for people.
        marks: without all of them, a file is none.
        holds: true of the facts of such a drafter.
        rows: its tensors.
        forward: its forward pass, `module:class`, which needs torch and is imported when something runs.
    """

    name: str
    title: str
    marks: tuple[Mark, ...]
    holds: Callable[[Facts], bool]
    rows: tuple[Row, ...]
    forward: str
