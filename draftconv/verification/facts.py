"""Every fact of an output, beside that of its source when the recorded steps are made again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from draftconv.drafter.describe import describe_value
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import AuxLayers, Facts
from draftconv.verification.claims import Claims, claimed
from draftconv.verification.compared import ComparedItem
from draftconv.verification.remaking import Remade
from draftconv.verification.stated_quantization import quantization_of


def compare_facts(out: Drafter, source: Drafter, remade: Remade, claims: Claims) -> Iterator[ComparedItem]:
    """Compare all of them, and the problems that readers would have with the output."""
    for item in fields(Facts):
        name = item.name
        ours, theirs, wanted = (getattr(facts, name) for facts in (out.facts, source.facts, remade.work.facts))
        if name == "quantization":
            wanted = quantization_of(out, remade.work)
        if ours == wanted:
            yield _alike(name, ours, theirs, remade)
        elif why := _implied_by(name, ours, wanted):
            yield ComparedItem(name, "declared", why)
        elif name == "max_positions" and ours == theirs:
            yield ComparedItem(name, "equal", "")  # nobody raised it, whatever --target would have
        else:
            yield claims.fact(name) or _boundaries_of_target(name, ours, claims) or _different(name, ours, wanted)
    yield from _new_problems(out, source)


def _alike(name: str, ours: object, theirs: object, remade: Remade) -> ComparedItem:
    if ours == theirs:
        return ComparedItem(name, "equal", "")
    change = f"{describe_value(theirs, none='absent')} → {describe_value(ours, none='absent')}"
    return ComparedItem(name, "declared", remade.why(name, "fact") or change)


def _boundaries_of_target(name: str, ours: object, claims: Claims) -> ComparedItem | None:
    """Layers that follow from a target which only the record names."""
    if name != "boundaries" or claims.of_target is None or claims.of_target.boundaries != ours:
        return None
    return claimed(name, f"{describe_value(ours)}, by default for its target")


def _different(name: str, ours: object, wanted: object) -> ComparedItem:
    how = f"{describe_value(ours)} in the output, {describe_value(wanted)} in the source"
    hint = "; give --target to compare them" if any(isinstance(side, AuxLayers) for side in (ours, wanted)) else ""
    return ComparedItem(name, "different", how + hint)


def _new_problems(out: Drafter, source: Drafter) -> Iterator[ComparedItem]:
    """Errors of the output that its source does not have: facts may agree while readers would not."""
    known = {problem.code for problem in source.problems}
    for problem in out.problems:
        if problem.severity == "error" and problem.code not in known:
            yield ComparedItem(problem.code, "different", f"{problem.kind.title}: {problem.detail}")


def _implied_by(name: str, ours: object, theirs: object) -> str | None:
    """Differences that need no declaration."""
    match name, ours, theirs:
        case "vocab_order", "ascending" | "unordered", "ascending" | "unordered":
            return "the rows of lm_head and its map were permuted together"
    return None
