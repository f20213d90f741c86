"""Files of entries, line by line or whole: JSON lines, a JSON list, and lines of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.text import refuse_deep
from draftconv.errors import BadPrompts

Read = Callable[[int], None]
"""Told the bytes of a file that were read so far."""


def whole_lines(path: Path, read: Read = lambda _: None) -> Iterator[tuple[str, str]]:
    """(FILE:LINE, line) of all lines with their line ends, a byte order mark skipped.

    Raises:
        BadPrompts: a line is too long or no UTF-8. OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(limits.PROMPT.value + 1):
            number += 1
            where = f"{path.name}:{number}"
            limits.PROMPT.check(len(line), f"{where} has more than {limits.PROMPT.value} bytes", error=BadPrompts)
            text = decoded(line, where, first=number == 1)
            read(file.tell())
            yield where, text


def text_lines(path: Path, read: Read = lambda _: None) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, without their line ends; as `whole_lines`."""
    for where, line in whole_lines(path, read):
        if line.strip():
            yield where, line.rstrip("\r\n")


def jsonl_entries(path: Path, read: Read = lambda _: None) -> Iterator[tuple[str, object]]:
    """(FILE:LINE, entry) of a file that holds one JSON value a line; raises as `text_lines`."""
    for where, line in text_lines(path, read):
        yield where, _parsed(line, where)


def json_entries(path: Path, read: Read = lambda _: None) -> Iterator[tuple[str, object]]:
    """(FILE entry N, entry) of a file that is one JSON list; raises as `text_lines`."""
    size = path.stat().st_size
    limits.PROMPTS.check(size, f"{show(path.name)} has {size} bytes", error=BadPrompts)
    entries = _parsed(decoded(path.read_bytes(), path.name, first=True), path.name)
    read(size)
    if not isinstance(entries, list):
        raise BadPrompts(f"{path.name} holds a JSON {type(entries).__name__}, not a list")
    for number, entry in enumerate(entries, 1):
        yield f"{path.name} entry {number}", entry


def decoded(data: bytes, where: str, *, first: bool) -> str:
    """UTF-8 as text; a byte order mark is skipped where it may stand.

    Raises:
        BadPrompts: it is something else.
    """
    try:
        return data.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise BadPrompts(
            f"{where} is not UTF-8 text (byte {error.start + 1}: {error.reason})", cure="save it as UTF-8"
        ) from error


def _parsed(text: str, where: str) -> object:
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise limits.JSON_LEVELS.exceeded(f"{where} is nested too deeply", error=BadPrompts) from error
    except ValueError as error:
        raise BadPrompts(f"{where} is not valid JSON: {show(error)}") from error
    refuse_deep(document, where, error=BadPrompts)
    return document


def encodable(text: str, where: str) -> str:
    """A text that has bytes.

    Raises:
        BadPrompts: it holds half of a surrogate pair.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadPrompts(f"{where} holds half of a surrogate pair", why="no tokenizer reads it") from error
    return text


def json_kind(value: object) -> str:
    """What a JSON value is, in words."""
    return "null" if value is None else f"a JSON {type(value).__name__}"
