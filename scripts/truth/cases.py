"""Checkpoints that an engine is asked about: a sound drafter and one change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from truth.drafts import Change


@dataclass(frozen=True, slots=True)
class Case:
    """One checkpoint.

    Attributes:
        what: is done to it. `base`: a name that `Makers.base` knows.
        rules: that must be among the reasons; none for a sound checkpoint.
        says: what must stand in the engine's refusal, as a regular expression, so that it refuses for that reason.
        facts: of the drafter, where they are not those of the base. `known`: problems of values, which no header shows.
        run: only a whole engine shows it.
    """

    what: str
    base: str
    change: Change = lambda d: d
    rules: tuple[str, ...] = ()
    says: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    run: bool = False

    @property
    def name(self) -> str:
        return f"{self.base}: {self.what}"


def sound(what: str, base: str, change: Change = lambda d: d, **more: object) -> Case:
    return Case(what, base, change, **more)  # type: ignore[arg-type]
