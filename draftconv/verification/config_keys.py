"""config.json of an output, key by key beside what the steps of the record write.

Facts are what every reader makes of a config. Engines and transformers look at more keys than any fact holds, and at
some they run code or turn half of each head (`auto_map`, `partial_rotary_factor`): so nothing may stand there that
the steps do not write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from draftconv.checkpoint import show_some
from draftconv.conversion.changed_drafter import spell_drafter
from draftconv.conversion.planned_output import QUANTIZATIONS
from draftconv.drafter.drafter import Drafter
from draftconv.errors import DraftconvError
from draftconv.verification.claims import Claims, claimed
from draftconv.verification.compared import ComparedItem
from draftconv.verification.remaking import Remade

CONFIG = "config.json"
CODE = "auto_map"
"""Transformers runs the code that it names, from any repository, where it is told to trust remote code."""

VERIFIER = "speculators_config.verifier.name_or_path"
"""What speculators opens the target by: `--verifier`."""

ELSEWHERE = frozenset({"max_position_embeddings", *QUANTIZATIONS})
"""Keys that are compared as the facts that they are, because a record alone may claim them."""


def compare_config(
    out: Drafter, source: Drafter, remade: Remade, claims: Claims, facts: Sequence[ComparedItem]
) -> Iterator[ComparedItem]:
    """What stands in the output's config.json and would not stand there if its steps were made again.

    Args:
        facts: of the two, compared; keys that say a fact which does not hold are told by its row alone.
    """
    mine = out.checkpoint.config
    if _asks_for_code(mine) and not _asks_for_code(source.checkpoint.config):
        how = "asks engines to run code, which the source does not and draftconv never writes"
        yield ComparedItem(f"{CONFIG}: {CODE}", "different", how)
    if remade.last is None or any(row.outcome in ("different", "claimed") for row in facts):
        return
    try:
        wanted = spell_drafter(remade.last, claims.evidence.target)[2].config
    except DraftconvError as error:
        how = f"the recorded steps write none: {error.what}"
        yield claimed(CONFIG, how) if claims.lacks_target else ComparedItem(CONFIG, "different", how)
        return
    keys = sorted(_differing(mine, json.loads(json.dumps(wanted))))
    if VERIFIER in keys and claims.evidence.verifier is None and _named(claims):
        keys.remove(VERIFIER)
        yield claimed(f"{CONFIG}: {VERIFIER}", "a name that a person gave, which only draftconv.json tells")
    if keys:
        named = show_some(keys, 8)
        if claims.lacks_target:
            yield claimed(CONFIG, f"{named}, which the target decides")
        else:
            yield ComparedItem(CONFIG, "different", f"{named}: not what the recorded steps write")


def _named(claims: Claims) -> bool:
    """Whether a recorded step was told what to call the target."""
    steps = claims.lineage.steps if claims.lineage else ()
    return any(step.options is not None and step.options.text("verifier") for step in steps)


def _differing(mine: Mapping[str, object], wanted: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """The keys, with dots between levels, that hold other values or are on one side only."""
    for key in mine.keys() | wanted.keys():
        if key in ELSEWHERE:
            continue
        ours, theirs = mine.get(key), wanted.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differing(ours, theirs, f"{prefix}{key}.")
        elif key not in mine or key not in wanted or _text(ours) != _text(theirs):
            yield prefix + key


def _text(value: object) -> str:
    """What tells `true` from 1, which Python calls equal."""
    return json.dumps(value, sort_keys=True)


def _asks_for_code(value: object) -> bool:
    """Whether the key stands anywhere in a config."""
    match value:
        case Mapping():
            return CODE in value or any(map(_asks_for_code, value.values()))
        case list():
            return any(map(_asks_for_code, value))
        case _:
            return False
