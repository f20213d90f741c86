"""Facts and config values in words, for records, messages and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum

from draftconv.drafter.facts import Facts, Gqa, Mla, Rope
from draftconv.drafter.kinds import kind_of


def describe_value(value: object, *, none: str = "null") -> str:
    """A value as it would stand in JSON, except that text stands alone and facts with parts list them.

    Args:
        none: what to say for None.
    """
    match value:
        case Enum():
            return str(value.value)
        case None:
            return none
        case str():
            return value
        case Gqa() | Mla() | Rope():
            return ", ".join(f"{f.name} {describe_value(getattr(value, f.name), none=none)}" for f in fields(value))
        case Mapping():
            return json.dumps(dict(value), ensure_ascii=False)
        case _:
            return json.dumps(value, ensure_ascii=False)


def join_words(names: Sequence[str], conjunction: str) -> str:
    """`a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def facts_json(facts: Facts) -> dict[str, object]:
    """Facts as plain JSON values, attention under its kind."""
    document: dict[str, object] = {"eagle": kind_of(facts).name}
    for item in fields(facts):
        value = getattr(facts, item.name)
        match item.name:
            case "attention":
                kind = type(value).__name__.lower()
                document["attention"] = {"kind": kind} | {f.name: getattr(value, f.name) for f in fields(value)}
            case "rope":
                document["rope"] = {
                    "theta": value.theta,
                    "pairs": value.pairs,
                    "kind": value.kind,
                    "scaling": dict(value.scaling),
                }
            case _:
                document[item.name] = value.value if isinstance(value, Enum) else value
    return document
