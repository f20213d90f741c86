"""Results as a person sees them: one line at a Python prompt, tables on a terminal and in a notebook.

A result says what stands in its line (`brief`), which tables and sentences its command prints (`blocks`), and what
lies behind them (`details`), which a command prints with `-v` and a notebook always shows. The command line gives them
colours; here they become HTML.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from draftconv import limits
from draftconv.checkpoint.text import safe

if TYPE_CHECKING:
    from jinja2 import Template

LONGEST = 120
"""Characters of a result's line."""
LONGEST_NAME = 40
"""Characters of a name in it, which a checkpoint may have made as long as it likes."""


class Column(NamedTuple):
    """A column; `figures` stand right-aligned."""

    title: str
    figures: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text, control characters escaped; whoever shows them escapes what its own markup needs.

    Attributes:
        note: one or two sentences on how to read it.
        columns: all without a title where the first names what the second says.
        rows: cells; one may have several lines, of which the first matters most.
    """

    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


Block: TypeAlias = Table | str
"""A table, or a sentence under one."""


def table(title: str, note: str, columns: Sequence[str | Column], rows: Iterable[Sequence[object]]) -> Table:
    """A table of whatever has a text; a tuple is a cell of several lines."""
    heads = (column if isinstance(column, Column) else Column(column) for column in columns)
    return Table(
        safe(title),
        note,
        tuple(head._replace(title=safe(head.title)) for head in heads),
        tuple(tuple(map(_cell, row)) for row in rows),
    )


def card(title: str, rows: Iterable[tuple[object, object]]) -> Table:
    """Names and what they say."""
    return table(title, "", ("", ""), rows)


def _cell(value: object) -> str:
    return "\n".join(map(shortened, value)) if isinstance(value, tuple) else shortened(value)


def shortened(value: object) -> str:
    """A line that a person can read: a checkpoint can hold texts of megabytes."""
    text, most = str(value), limits.CELL.value
    return safe(text) if len(text) <= most else f"{safe(text[:most])}… ({len(text)} characters)"


def named(name: object) -> str:
    """A name in a result's line."""
    text = safe(name)
    return f"'{text}'" if len(text) <= LONGEST_NAME else f"'{text[: LONGEST_NAME - 1]}…'"


class Displayed(ABC):
    """What a command found out or made."""

    __slots__ = ()

    @abstractmethod
    def brief(self) -> Iterator[str]:
        """What its line says, the most important first."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """What its command prints of it, what it comes to first; sentences are as found, not made harmless."""

    def details(self) -> Iterator[Block]:
        """What lies behind that, for whoever wants to know why."""
        yield from ()

    def __repr__(self) -> str:
        line = safe(f"{type(self).__name__}({', '.join(self.brief())})")
        return line if len(line) <= LONGEST else f"{line[: LONGEST - 2]}…)"

    def _repr_html_(self) -> str:
        return _template().render(
            blocks=[safe(b) if isinstance(b, str) else b for b in (*self.blocks(), *self.details())],
        )


HTML = """\
<div class="draftconv">
<style>.draftconv th, .draftconv td { text-align: left; white-space: pre-wrap; vertical-align: top }
.draftconv caption { text-align: left; font-weight: bold } .draftconv .figure { text-align: right }</style>
{% for block in blocks %}
{% if block is string %}
<p>{{ block }}</p>
{% else %}
<table>
<caption>{{ block.title }}</caption>
{% if block.columns | map(attribute="title") | join %}
<thead><tr>
{% for column in block.columns %}
<th{% if column.figures %} class="figure"{% endif %}>{{ column.title }}</th>
{% endfor %}
</tr></thead>
{% endif %}
<tbody>
{% for row in block.rows %}
<tr>
{% for cell in row %}
<td{% if block.columns[loop.index0].figures %} class="figure"{% endif %}>{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
{% endif %}
{% endfor %}
</div>
"""


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True)
    return environment.from_string(HTML)
