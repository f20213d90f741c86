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
        kind = waiting.pop(0)
        if kind in seen:
            continue
        seen.add(kind)
        hints = typing.get_type_hints(kind, include_extras=True)
        names = (
            list(kind.model_fields) if kind in (RecordLine, Document) else [f.name for f in dataclasses.fields(kind)]
        )
        about, meanings = described(kind, names)
        yield kind.__name__, about, [(name, type_label(hints[name]), meanings.get(name, "")) for name in names]
        waiting += [part for name in names for part in classes(hints[name])]


def described(kind: type, names: list[str]) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and what it says of each field."""
    text = inspect.getdoc(kind) or ""
    about, _, rest = text.partition("Attributes:")
    name = f"`?(?:{'|'.join(names)})`?"
    label = re.compile(rf"(?:^|(?<=\s))({name}(?:, {name})*): ")
    pieces = label.split(" ".join(rest.split()))
    meanings = {
        field: meaning.strip(" .;,")
        for group, meaning in zip(pieces[1::2], pieces[2::2], strict=True)
        for field in group.replace("`", "").split(", ")
    }
    return " ".join(about.split("\n\n")[0].split()), meanings


def classes(hint: object) -> Iterator[type]:
    """The classes that a type names."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes(part)


def type_label(hint: object) -> str:
    """A type as a reader of JSON calls it."""
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case None:
            return WORDS.get(hint) or f"[{hint.__name__}](#{hint.__name__.lower()})"  # type: ignore[attr-defined]
        case origin if origin is Annotated:
            return type_label(parts[0])
        case origin if origin is Literal:
            return " or ".join(f"`{part}`" for part in parts)
        case origin if origin in (Union, UnionType):
            return " or ".join(map(type_label, parts))
        case origin if origin is tuple:
            return f"list of {type_label(parts[0])}"
        case _:
            return f"object: name to {type_label(parts[1])}"
