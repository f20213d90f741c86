"""Why a problem of a drafter matters: what is wrong, and what each engine makes of it."""

from __future__ import annotations

from draftconv.drafter.problems import KINDS
from draftconv.engines.registry import ENGINES


def why(code: str) -> str:
    """What is told of a problem: "no trainer writes both; vLLM applies both in sequence; …"."""
    effects = (f"{engine.title} {engine.problems[code]}" for engine in ENGINES.values() if code in engine.problems)
    return "; ".join((KINDS[code].why, *effects))
