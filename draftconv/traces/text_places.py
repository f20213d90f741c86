"""Where texts to count come from: files and data sets of the Hub, each of a domain that has a weight.

    PLACE                    of the domain `text`, weight 1
    DOMAIN=WEIGHT:PLACE      of a domain with a weight: its share of what will be asked, beside the others'

A place is a .jsonl or .json file (see `written_texts`), any other file of UTF-8 text, or a data set of the Hub:
`hf://datasets/OWNER/NAME[@REVISION][:SPLIT]`, by default its split `train`, read from its first row on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.files import exists
from draftconv.errors import BadPrompts, UsageError
from draftconv.traces.data_sets import commit_of, datasets, hub_errors, refuse_namesake, rows_of
from draftconv.traces.entries import Read, json_entries, jsonl_entries, whole_lines
from draftconv.traces.written_texts import WrittenText, written_text

DOMAIN = "text"
"""Of a place that names none."""

WEIGHTED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.+-]*)=([^:=]*):(.+)", re.DOTALL)
DATA_SET = re.compile(r"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<split>[\w.\[\]:%+-]+))?")

PIECE = 16 * 1024
"""Characters of a text file that are a conversation of their own: whole lines, four thousand tokens or so."""

Found = Iterator[tuple[str, WrittenText | None]]
"""(where, what the target wrote there) in order; None of an entry without."""


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A place as a person names it.

    Attributes:
        weight: of the domain, which all places of the domain share.
    """

    place: str
    domain: str = DOMAIN
    weight: float = 1.0

    @property
    def name(self) -> str:
        """What a record calls it: nothing of where it lies on this machine."""
        return self.place if DATA_SET.fullmatch(self.place) else Path(self.place).name

    @property
    def is_data_set(self) -> bool:
        return DATA_SET.fullmatch(self.place) is not None


def text_places(specs: Sequence[str]) -> tuple[TextPlace, ...]:
    """What `--counts` names, checked together; nothing is read.

    Raises:
        UsageError: a weight that is none, a domain with two weights, no such file, or none at all.
    """
    if not specs:
        raise UsageError("--counts names nothing to count", cure="give --counts FILE")
    places = tuple(map(_parsed_place, specs))
    weights: dict[str, float] = {}
    for place in places:
        if (weight := weights.setdefault(place.domain, place.weight)) != place.weight:
            raise UsageError(
                f"--counts: the domain {place.domain} has the weights {weight:g} and {place.weight:g}",
                why="a weight is of the whole domain, however many places it comes from",
                cure="give all its places the same weight",
            )
        if not place.is_data_set and not exists(Path(place.place)):
            raise _no_place(place.place)
        if not place.is_data_set and not Path(place.place).is_file():
            raise UsageError(f"--counts {show(place.place)} is no file", cure="name its files one by one")
    return places


def _parsed_place(spec: str) -> TextPlace:
    match = WEIGHTED.fullmatch(spec)
    if match is None or exists(Path(spec)):
        return TextPlace(spec)
    domain, weight, place = match.groups()
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"--counts {show(spec)}: {show(weight) or 'nothing'} is no weight",
            cure="write DOMAIN=WEIGHT:FILE with a number above 0, such as code=3:logs.jsonl",
        )
    return TextPlace(place, domain, value)


def _no_place(place: str) -> UsageError:
    domain, colon, rest = place.partition(":")
    if place.startswith("hf://"):
        cure = "a data set is hf://datasets/OWNER/NAME[@REVISION][:SPLIT]"
    elif colon and exists(Path(rest)):
        cure = f"write {domain}=1:{rest} for a domain of that name"
    else:
        cure = "check the path; a data set of the Hub is hf://datasets/OWNER/NAME"
    return UsageError(f"--counts {show(place)}: no such file", cure=cure)


def read_place(place: TextPlace, read: Read = lambda _: None) -> Found:
    """What the target wrote at a place, entry by entry.

    Args:
        read: told the bytes of the file so far; nothing of a data set.

    Raises:
        BadPrompts: it cannot be read, or an entry is none; names file and line.
    """
    if (match := DATA_SET.fullmatch(place.place)) is not None:
        yield from _rows(match["name"], match["revision"], match["split"] or "train")
        return
    path = Path(place.place)
    reader = READERS.get(path.suffix, _pieces)
    try:
        limits.TEXT.check(size_of(place), f"{show(path.name)} has {size_of(place)} bytes", error=BadPrompts)
        for where, entry in reader(path, read):
            yield where, written_text(entry, where)
    except OSError as error:
        raise BadPrompts(f"{show(path.name)} cannot be read: {error.strerror}") from error


def size_of(place: TextPlace) -> int:
    """Bytes of its file; 0 for a data set, which is read as far as it is wanted."""
    return 0 if place.is_data_set else Path(place.place).stat().st_size


def _pieces(path: Path, read: Read) -> Iterator[tuple[str, object]]:
    """A text in pieces of whole lines; a line longer than a piece is one by itself."""
    piece: list[str] = []
    start, size = "", 0
    for where, line in whole_lines(path, read):
        if "\0" in line:
            raise BadPrompts(
                f"{where} holds a zero byte", why="it is no text", cure="give a .jsonl, .json or text file"
            )
        start, size = start or where, size + len(line)
        piece.append(line)
        if size >= PIECE:
            yield start, "".join(piece)
            piece, start, size = [], "", 0
    if piece:
        yield start, "".join(piece)


READERS = {".jsonl": jsonl_entries, ".json": json_entries}
"""Of files that hold entries; every other one is text."""


def _rows(name: str, revision: str | None, split: str) -> Found:
    refuse_namesake(name)
    datasets()  # before the Hub is asked
    with hub_errors(name):
        commit = commit_of(name, revision)
        for number, row in enumerate(rows_of(name, None, split, commit, stream=True)):
            where = f"{name} row {number}"
            yield where, written_text(row, where)
