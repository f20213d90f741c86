"""Tables and sentences in the columns of a terminal. No word that fits on a line is ever broken.

Columns that are too wide together share the width; where not even their words have room side by side, every cell
becomes a line `column: value`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from draftconv.display import Table

STYLES: Mapping[str, str] = {
    "loads": "green",
    "mis-read": "yellow",
    "refused": "red",
    "undecided": "magenta",
    "note": "dim",
    "error": "red",
    "warning": "yellow",
    "equal": "green",
    "declared": "cyan",
    "different": "red",
    "pass": "green",
    "equivalent": "green",
    "fail": "red",
    "inconclusive": "yellow",
    "void": "magenta",
    "caught": "green",
    "MISSED": "red",
    "not applicable": "dim",
    "absent": "dim",
}
"""Words that have a colour where they are all that a line of a cell says."""

GAP = 2
"""Spaces between columns."""
INDENT = 1
"""Spaces before a table's rows."""
DEEPER = 2
"""More of them, for what belongs to the line above."""
NARROW = 20
"""No column of prose is made narrower than this: rows would become as tall as the screen."""


def render(block: Table, width: int) -> Iterator[Text]:
    """The lines of a table, an empty one at the end.

    Args:
        width: of the terminal, in characters.
    """
    from rich.text import Text

    if block.title:
        yield from wrap(Text(block.title, "bold"), width)
    widths = fit(_columns(block), width - INDENT)
    yield from _stacked(block, width) if widths is None else _side_by_side(block, widths)
    yield Text()


def wrap(line: Text, width: int, first: int = 0, rest: int = 0) -> Iterator[Text]:
    """A line as lines of at most `width` characters.

    Args:
        first, rest: spaces before the first of them and before the others; fewer where a word needs the room.
    """
    from rich.console import Console

    spare = max(width - _longest([line.plain]), 0)
    first, rest = min(first, spare), min(rest, spare)
    for number, part in enumerate(line.wrap(Console(), max(width - max(first, rest), 1))):
        part.pad_left(rest if number else first)
        part.rstrip()
        yield part


def fit(columns: Sequence[Iterable[str]], room: int) -> tuple[int, ...] | None:
    """Widths of columns that break no word; None where there are none.

    Args:
        columns: the lines of all cells of each. `room`: for all of them, with the gaps between.
    """
    from rich.cells import cell_len

    natural, least = [], []
    for lines in map(tuple, columns):
        natural.append(max(map(cell_len, lines), default=0))
        least.append(max(_longest(lines), min(natural[-1], NARROW)))
    spare = room - GAP * (len(columns) - 1) - sum(least)
    if spare < 0:
        return None
    widths = least
    while spare and (growing := [i for i, wanted in enumerate(natural) if widths[i] < wanted]):
        each = max(spare // len(growing), 1)
        for i in growing:
            more = min(each, natural[i] - widths[i], spare)
            widths[i] += more
            spare -= more
    return tuple(widths)


def cell_text(value: str) -> Text:
    """A cell in its colours; of several lines the first matters most."""
    from rich.text import Text

    first, *rest = value.split("\n")
    cell = Text(first, STYLES.get(first, ""))
    for line in rest:
        cell.append("\n").append(line, "dim")
    return cell


def _columns(block: Table) -> list[list[str]]:
    cells = [[column.title, *(row[i] for row in block.rows)] for i, column in enumerate(block.columns)]
    return [[line for cell in column for line in cell.split("\n")] for column in cells]


def _named(block: Table) -> bool:
    """Whether the first column names what the second says."""
    return not any(column.title for column in block.columns)


def _longest(lines: Iterable[str]) -> int:
    """Of the longest word."""
    from rich.cells import cell_len

    return max((cell_len(word) for line in lines for word in line.split()), default=0)


def _side_by_side(block: Table, widths: Sequence[int]) -> Iterator[Text]:
    from rich.text import Text

    if not _named(block):
        yield from _row(block, [Text(column.title, "bold") for column in block.columns], widths)
        yield Text(" " * INDENT + "─" * (sum(widths) + GAP * (len(widths) - 1)))
    for row in block.rows:
        yield from _row(block, _cells(block, row), widths)


def _row(block: Table, cells: Sequence[Text], widths: Sequence[int]) -> Iterator[Text]:
    from rich.text import Text

    wrapped = (
        [part for line in cell.split("\n", allow_blank=True) for part in wrap(line, width)]
        for cell, width in zip(cells, widths, strict=True)
    )
    for parts in zip_longest(*wrapped, fillvalue=Text()):
        line = Text(" " * INDENT)
        for number, (part, width, column) in enumerate(zip(parts, widths, block.columns, strict=True)):
            pad = Text(" " * (width - part.cell_len))
            line.append(" " * GAP if number else "")
            line += pad + part if column.figures else part + pad
        line.rstrip()
        yield line


def _stacked(block: Table, width: int) -> Iterator[Text]:
    """Every cell below the other; what follows a row's first is further in, as is what a card says without a name."""
    from rich.text import Text

    for row in block.rows:
        cells = _cells(block, row)
        titled = [cells] if _named(block) else zip([Text(column.title) for column in block.columns], cells, strict=True)
        for number, (title, cell) in enumerate(titled):
            indent = INDENT + (DEEPER if number or (_named(block) and not title) else 0)
            lead = Text.assemble(title, ": ") if title else Text()
            lead.stylize("dim")
            for line in (lead + cell).split("\n") if cell else ():
                yield from wrap(line, width, indent, indent + DEEPER)
                indent = INDENT + 2 * DEEPER


def _cells(block: Table, row: Sequence[str]) -> list[Text]:
    cells = [cell_text(value) for value in row]
    if _named(block):
        cells[0].stylize("dim")
    return cells
