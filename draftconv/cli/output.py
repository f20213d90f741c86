"""Everything the commands print.

stdout carries data, stderr carries progress and errors. Text from a checkpoint is
untrusted: markup is never interpreted and control characters are shown as escapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from draftconv.errors import DraftconvError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

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
    "fail": "red",
}


def safe(value: object) -> str:
    """Text with control, bidirectional and other unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def text(value: object, style: str = "") -> Text:
    from rich.text import Text

    return Text(safe(value), style=style)


def styled(word: str) -> Text:
    """A verdict word in its colour."""
    return text(word, STYLES.get(word, ""))


def console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=False, width=width)


def print_json(document: object) -> None:
    """One stable JSON document; ASCII, so nothing in it can drive a terminal."""
    print(json.dumps(document, indent=2, ensure_ascii=True))


def print_error(error: DraftconvError) -> None:
    """What, why and what to type next, on stderr."""
    lines = [f"Error: {safe(error.what)}"]
    lines += [f"       {safe(line)}" for part in (error.why, error.cure) if part for line in part.splitlines()]
    print("\n".join(lines), file=sys.stderr)


def print_notes(notes: Iterable[str]) -> None:
    """Things worth knowing, on stderr so that stdout can be piped into a shell."""
    for note in notes:
        print(f"Note: {safe(note)}", file=sys.stderr)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> RenderableType:
    """A plain table; every cell must come from `text` or `styled`."""
    from rich import box
    from rich.table import Table

    made = Table(title=safe(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def card(title: str, rows: Iterable[tuple[str, object]]) -> RenderableType:
    """Names and values, two columns without a header."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=safe(title), title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False, pad_edge=False
    )
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(text(name), text(value))
    return made


def size(count: int) -> str:
    """Bytes as a person reads them: 6.36 GB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{count} B"


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with bytes/s and ETA on stderr; silent when stderr is not a terminal."""
    if not sys.stderr.isatty() or total < 64 << 20:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(safe(label)), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
