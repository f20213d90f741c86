"""Whose embedding and head a drafter is run with: engines do not agree, and each says so (`Engine.replaces`)."""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.drafter.facts import Facts
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.engines import ENGINES


def semantics() -> Mapping[str, frozenset[str]]:
    """Tables of a drafter that the target's replace, by engine; without an engine of which nobody knows."""
    return {name: engine.replaces for name, engine in ENGINES.items() if engine.replaces is not None}


def from_target(facts: Facts, engine: str) -> frozenset[str]:
    """Canonical names of the tables that come from the target, by the rule of one of `semantics`."""
    stored = {EMBEDDING: facts.own_embedding, HEAD: facts.own_head}
    missing = frozenset(table for table, own in stored.items() if not own)
    return missing | semantics()[engine] if facts.hidden == facts.target_hidden else missing
