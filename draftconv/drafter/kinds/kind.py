"""What a kind of drafter is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftconv.drafter.facts import Facts
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.tensor_specs import TensorSpec


@dataclass(frozen=True, slots=True)
class KindMark:
    """What a file of a kind shows; `lacking` is what to say of one that does not, and `why` it has to."""

    holds: Callable[[Fingerprint], bool]
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
    marks: tuple[KindMark, ...]
    holds: Callable[[Facts], bool]
    rows: tuple[TensorSpec, ...]
    forward: str
