"""How engines choose their drafts where text is drawn: the drafter's most likely token, or one that is drawn too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from draftconv.engines.registry import ENGINES
from draftconv.errors import UsageError

if TYPE_CHECKING:
    from draftconv.engines.rules import EngineSpec

DraftMethodName = Literal["greedy", "probabilistic"]


@dataclass(frozen=True, slots=True)
class DraftMethod:
    """What an engine does from one version on.

    Attributes:
        since: the first version that it was read of.
        usual: what it does where nobody says.
        drawn: pattern of the argument, or the line of a settings file, with which drafts are drawn.
        source: the files that decide, their version, and whether they were read or run.
        whole: why drafts are drawn from a whole vocabulary only; empty where they may be from a reduced one.
    """

    since: tuple[int, ...]
    usual: DraftMethodName
    drawn: str
    source: str
    whole: str = ""


def draft_method(spec: EngineSpec, texts: Iterable[str]) -> str:
    """How a server chooses its drafts, and where that is known from.

    Args:
        texts: its arguments, and the text of the files that it reads. Nobody knows those of a server that is running
            already; what is usual is said.
    """
    engine, method = ENGINES[spec.name], _read(spec)
    if method is None:
        return f"not known of {engine.title} {spec.version}"
    name = "probabilistic" if _asked(method, texts) else method.usual
    return f"{name} ({engine.title}, {method.source})"


def refuse_reduced(spec: EngineSpec, texts: Iterable[str]) -> None:
    """Refuse drafts that are drawn from a reduced vocabulary, where an engine cannot.

    Raises:
        UsageError: it is asked to.
    """
    method = _read(spec)
    if method and method.whole and (asked := _asked(method, texts)):
        raise UsageError(
            f"{asked} beside a drafter with a reduced vocabulary",
            why=f"{method.whole} [{ENGINES[spec.name].title}, {method.source}]",
            cure="leave it out: drafts are then the drafter's most likely tokens",
        )


def _read(spec: EngineSpec) -> DraftMethod | None:
    """What was read of this version or the last one before it."""
    rows = [row for row in ENGINES[spec.name].draft_methods if not spec.before(*row.since)]
    return max(rows, key=lambda row: row.since, default=None)


def _asked(method: DraftMethod, texts: Iterable[str]) -> str:
    """The argument that asks for drawn drafts, as it was given; empty where none does."""
    found = re.search(method.drawn, " ".join(texts))
    return found[0] if found else ""
