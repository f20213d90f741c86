"""Everything the commands print.

stdout carries data, stderr carries progress and errors. Text from a checkpoint is
untrusted: markup is never interpreted and control characters are shown as escapes.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from draftconv.checkpoint.text import safe as safe
from draftconv.checkpoint.text import size as size
from draftconv.cli.loudness import is_quiet
from draftconv.display import shortened
from draftconv.errors import DraftconvError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from draftconv.display import Block, Table
    from draftconv.drafter.drafter import Drafter

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

LEADS: Mapping[str, str] = {
    "Error ": "red",
    "Warning": "yellow",
    "Not checked: ": "dim",
    "Config keys left out": "dim",
    "Verified: pass": "green",
    "Verified: fail": "red",
    "  ": "dim",
}
"""How sentences begin that have a colour."""

NOTICEABLE = 64 << 20
"""Bytes below which no bar is shown."""


def text(value: object, style: str = "") -> Text:
    from rich.text import Text

    return Text(safe(value), style=style)


def lines(values: Iterable[object]) -> Text:
    """One cell of several lines."""
    from rich.text import Text

    return Text("\n").join(text(value) for value in values)


def styled(word: str) -> Text:
    """A verdict word in its colour."""
    return text(word, STYLES.get(word, ""))


def console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=False, width=width)


def print_json(document: object) -> None:
    """One stable JSON document; ASCII, so nothing in it can drive a terminal."""
    write(json.dumps(document, indent=2, ensure_ascii=True))


def write(line: str) -> None:
    """One line on stdout as it is, never wrapped."""
    if not is_quiet():
        print(line)


def print_next(argv: Sequence[str]) -> None:
    """The next command, on one line and quoted for a shell."""
    write(f"Next: {safe(shlex.join(argv))}")


def print_error(error: DraftconvError) -> None:
    """What, why and what to type next, on stderr."""
    lines = [f"Error: {_line(error.what)}"]
    lines += [f"       {_capital(_line(part))}" for part in (error.why, error.cure) if part]
    print("\n".join(lines), file=sys.stderr)


def print_fault(error: Exception) -> None:
    """An exception that nobody foresaw."""
    print(f"Error: {type(error).__name__}: {_line(error)}", file=sys.stderr)
    print("       This is a fault of draftconv; the same command with --debug shows where", file=sys.stderr)


def _line(value: object) -> str:
    """A part of a message on a line of its own, without a final period, which could end up in a pasted command."""
    line = shortened(value)
    return line[:-1] if line.endswith(".") and not line.endswith("..") else line


def _capital(line: str) -> str:
    """Start like a sentence, except with a name (d2t, fc, vLLM) or a command."""
    first = line.split(" ", 1)[0].rstrip(",:;.")
    plain = first.isascii() and first.isalpha() and first.islower() and first not in ("fc", "draftconv")
    return line[0].upper() + line[1:] if plain and not line.startswith("convert --") else line


def print_notes(notes: Iterable[str]) -> None:
    """Things worth knowing, on stderr so that stdout can be piped into a shell."""
    for note in () if is_quiet() else notes:
        print(f"Note: {safe(note)}", file=sys.stderr)


def print_readings(fmt: str, *drafters: Drafter) -> None:
    """How drafters were read, with every inference, on stdout for a person; every doubt on stderr, JSON or not.

    Args:
        fmt: of --format. JSON holds all of it.
    """
    from draftconv.layouts.drafter_reader import reading_line, reading_warnings

    for drafter in drafters:
        if fmt == "human":
            write(safe(reading_line(drafter)))
        print_warnings(f"{drafter.checkpoint.name}: {doubt}" for doubt in reading_warnings(drafter))


def print_warnings(warnings: Iterable[str]) -> None:
    """What may make a result wrong, on stderr."""
    for warning in () if is_quiet() else warnings:
        print(f"Warning: {safe(warning)}", file=sys.stderr)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> RenderableType:
    """A plain table; every cell must come from `text` or `styled`."""
    from rich import box
    from rich.table import Table

    rich_table = Table(title=safe(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        rich_table.add_column(column, overflow="fold")
    for row in rows:
        rich_table.add_row(*row)
    return rich_table


def card(title: str, rows: Iterable[tuple[str, object]]) -> RenderableType:
    """Names and values, two columns without a header."""
    from rich import box
    from rich.table import Table

    rich_table = Table(
        title=safe(title), title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False, pad_edge=False
    )
    rich_table.add_column(style="dim", no_wrap=True)
    rich_table.add_column(overflow="fold")
    for name, value in rows:
        rich_table.add_row(text(name), text(value))
    return rich_table


def show(blocks: Iterable[Block]) -> None:
    """Tables and sentences of a result."""
    screen = console()
    for block in blocks:
        screen.print(text(block, _style(block)) if isinstance(block, str) else _render_table(block))


def _style(sentence: str) -> str:
    return next((style for lead, style in LEADS.items() if sentence.startswith(lead)), "")


def _render_table(block: Table) -> RenderableType:
    if not any(column.title for column in block.columns):
        return card(block.title, ((name, value) for name, value in block.rows))
    rows = ([_render_cell(cell) for cell in row] for row in block.rows)
    return table(block.title, [column.title for column in block.columns], rows)


def _render_cell(value: str) -> Text:
    """The first line matters most."""
    first, *rest = value.split("\n")
    cell = styled(first)
    for line in rest:
        cell.append("\n").append(text(line, "dim"))
    return cell


def draws() -> bool:
    """Whether bars are shown: on a terminal, to somebody who wants to hear."""
    return sys.stderr.isatty() and not is_quiet()


@contextmanager
def stages(units: Mapping[str, str]) -> Iterator[Callable[[str, int, int], None]]:
    """A bar per stage of the work with pace and ETA on stderr; silent where `draws` says no.

    What it yields is called with the stage, how much of it is done, and how much it is in all.

    Args:
        units: stage → what it counts; `bytes` are shown in larger units.
    """
    if not draws():
        yield lambda _, __, ___: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    class Pace(ProgressColumn):
        def render(self, task: Task) -> Text:
            pace, unit = int(task.speed or 0), units[task.description]
            return text(f"{size(pace) if unit == 'bytes' else f'{pace} {unit}'}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Pace(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield report


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with bytes/s and ETA on stderr; silent where `draws` says no or there is little to do.

    What it yields is called with the bytes done and the bytes in all.
    """
    if not draws():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(safe(label)), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=total >= NOTICEABLE)
