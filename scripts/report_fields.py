"""The fields of report.json and records.jsonl as tables, from the classes that define them."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Literal, Union

from draftconv.report.schema import Document, RecordLine

WORDS: Mapping[object, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    NoneType: "null",
}


def tables() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Name, first words and rows (field, type, meaning) of every class, each after the one that names it."""
    waiting: list[type] = [RecordLine, Document]
    seen: set[type] = set()
    while waiting:
        found = waiting.pop(0)
        if found in seen:
            continue
        seen.add(found)
        hints = typing.get_type_hints(found, include_extras=True)
        names = (
            list(found.model_fields) if found in (RecordLine, Document) else [f.name for f in dataclasses.fields(found)]
        )
        about, meanings = described(found, names)
        yield found.__name__, about, [(name, word(hints[name]), meanings.get(name, "")) for name in names]
        waiting += [part for name in names for part in classes(hints[name])]


def described(found: type, names: list[str]) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and what it says of each field."""
    text = inspect.getdoc(found) or ""
    about, _, rest = text.partition("Attributes:")
    one = "|".join(names)
    label = re.compile(rf"(?:^|(?<=\s))`?((?:{one})(?:, (?:{one}))*)`?: ")
    pieces = label.split(" ".join(rest.split()))
    meanings = {
        name: meaning.strip(" .;,")
        for group, meaning in zip(pieces[1::2], pieces[2::2], strict=True)
        for name in group.split(", ")
    }
    return " ".join(about.split("\n\n")[0].split()), meanings


def classes(hint: object) -> Iterator[type]:
    """The classes that a type names."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes(part)


def word(hint: object) -> str:
    """A type as a reader of JSON calls it."""
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case None:
            return WORDS.get(hint) or f"[{hint.__name__}](#{hint.__name__.lower()})"  # type: ignore[attr-defined]
        case origin if origin is Annotated:
            return word(parts[0])
        case origin if origin is Literal:
            return " or ".join(f"`{part}`" for part in parts)
        case origin if origin in (Union, UnionType):
            return " or ".join(map(word, parts))
        case origin if origin is tuple:
            return f"list of {word(parts[0])}"
        case _:
            return f"object: name to {word(parts[1])}"
