"""Who else can hold a drafter that a layout refuses: every other one is asked for its own refusals."""

from __future__ import annotations

from dataclasses import replace

from draftconv.drafter.describe import join_words
from draftconv.drafter.facts import AuxLayers, Facts, Mla
from draftconv.drafter.rope import with_yarn_defaults
from draftconv.drafter.targets import Target
from draftconv.errors import Refused, UsageError
from draftconv.layouts import writable
from draftconv.layouts.base import Writer, Writing


def elsewhere(refusing: Writer, facts: Facts, target: Target | None) -> str:
    """The cure for a drafter that this writer refuses: where else it can go; for serving, if that is what it is for."""
    names = [
        name
        for name, other in writable().items()
        if other.writer is not None
        and other.writer is not refusing
        and (other.writer.serves or not refusing.serves)
        and _can_hold(other.writer, facts, target)
    ]
    if names:
        return f"convert to {join_words(names, 'or')}"
    return "no engine serves it as it was trained" if refusing.serves else "no other layout can hold it"


def _can_hold(writer: Writer, facts: Facts, target: Target | None) -> bool:
    if writer.spelling.yarn_in_full:
        facts = replace(facts, rope=with_yarn_defaults(facts.rope, latent=isinstance(facts.attention, Mla)))
    if any(limit.holds(facts) for limit in writer.refuses):
        return False
    boundaries = None if isinstance(facts.boundaries, AuxLayers) else facts.boundaries
    try:
        writer.config(Writing(facts, boundaries, target, {}, "bfloat16"))
    except (Refused, UsageError):
        return False
    return True
