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
from draftconv.cli.answer import document_given
from draftconv.cli.loudness import is_quiet
from draftconv.display import shortened
from draftconv.errors import DraftconvError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from draftconv.display import Block
    from draftconv.drafter.drafter import Drafter

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


def console() -> Console:
    """stdout; as wide as the terminal, or 120 characters where it is none."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120
    return Console(markup=False, highlight=False, emoji=False, width=width)


def print_json(document: object) -> None:
    """One stable JSON document; ASCII, so nothing in it can drive a terminal."""
    write(json.dumps(document, indent=2, ensure_ascii=True))
    document_given()


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


def readings(*drafters: Drafter) -> list[str]:
    """How drafters were read, with every inference, a sentence each; for a person, as JSON holds all of it."""
    from draftconv.layouts.drafter_reader import reading_line

    return [reading_line(drafter) for drafter in drafters]


def print_doubts(*drafters: Drafter) -> None:
    """Every doubt about how drafters were read, on stderr, JSON or not."""
    from draftconv.layouts.drafter_reader import reading_warnings

    for drafter in drafters:
        print_warnings(f"{drafter.checkpoint.name}: {doubt}" for doubt in reading_warnings(drafter))


def print_warnings(warnings: Iterable[str]) -> None:
    """What may make a result wrong, on stderr."""
    for warning in () if is_quiet() else warnings:
        print(f"Warning: {safe(warning)}", file=sys.stderr)


def show(blocks: Iterable[Block]) -> None:
    """Tables and sentences of a result, as wide as the terminal; off a terminal a sentence is one line."""
    if is_quiet():
        return
    from draftconv.cli.tables import render
    from draftconv.display import Table

    screen = console()
    for block in blocks:
        for line in render(block, screen.width) if isinstance(block, Table) else _sentence(block, screen):
            screen.print(line, no_wrap=True, overflow="ignore", crop=False)


def _sentence(sentence: str, screen: Console) -> Iterator[Text]:
    from rich.text import Text

    from draftconv.cli.tables import wrap

    line = Text(safe(sentence), next((style for lead, style in LEADS.items() if sentence.startswith(lead)), ""))
    indent = len(sentence) - len(sentence.lstrip(" "))
    yield from wrap(line, screen.width, rest=indent + 2) if screen.is_terminal else (line,)


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
    from rich.text import Text

    class Pace(ProgressColumn):
        def render(self, task: Task) -> Text:
            pace, unit = int(task.speed or 0), units[task.description]
            return Text(f"{size(pace) if unit == 'bytes' else f'{pace} {unit}'}/s")

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
