"""`draftconv trace`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from draftconv.api.trace import TraceOptions, TraceSize, trace
from draftconv.cli.interrupted import keeping
from draftconv.cli.options import format_option, options_of
from draftconv.traces.options import runners
from draftconv.traces.prompts import DEFAULT_SUITE
from draftconv.traces.trace import PARTIAL, Trace, about_json, request_json

EPILOG = f"""\b
Examples:
  draftconv trace --target Qwen/Qwen3-8B --prompts mt-bench --out qwen3-mt-bench
  draftconv trace --target target --prompts mine.jsonl --out trace --drafter drafter --device cuda
  draftconv trace --target Kimi-K2.6 --prompts mt-bench --out kimi --engine {runners()[1]} -tp 8
"""


@click.command(epilog=EPILOG)
@click.option(
    "--target", required=True, metavar="TARGET", help="The model to run: a directory, a Hub id or a known name."
)
@click.option(
    "--prompts",
    default=DEFAULT_SUITE,
    show_default=True,
    metavar="SUITE|FILE",
    help="A prompt suite, or a .jsonl, .json or .txt file.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The directory to write.")
@options_of(TraceOptions)
@format_option
def command(target: str, prompts: str, out: Path, fmt: str, **keywords: Any) -> None:
    """Run a target once and keep what it did: tokens and hidden states, to replay drafters on.

    The target continues every prompt greedily, or draws its text at a --temperature. A run that is
    stopped keeps what it has; the same command goes on with it.
    """
    from draftconv.cli import output

    with keeping(out, "captured", mark=PARTIAL), _progress() as report:
        captured = trace(target, prompts, out, **keywords, announce=_announce, progress=report)
    match fmt:
        case "json":
            output.print_json(_json(captured))
        case "human":
            output.show(captured.blocks())
            output.print_next(["draftconv", "parity", "REFERENCE", "CANDIDATE", "--trace", str(out)])


def _announce(sizing: TraceSize) -> None:
    from draftconv.cli import output

    boundaries = ", ".join(map(str, sizing.boundaries))
    output.print_notes(
        (
            *sizing.drafters,
            f"boundaries {boundaries}: {sizing.reason}",
            f"{sizing.requests} requests, at most {sizing.tokens} tokens in {sizing.dtype} on {sizing.device}",
            f"at most {output.size(sizing.states)} of states and {output.size(sizing.tables)} of tables",
        )
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, float], None] | None]:
    """A bar with tokens/s and ETA on stderr, where one is drawn."""
    from draftconv.cli.output import draws

    if not draws():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("capturing"), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, visible=False)
        began = 0.0

        def report(tokens: int, done: float) -> None:
            nonlocal began
            began = began or time.monotonic()
            rate = tokens / max(time.monotonic() - began, 1e-3)
            bar.update(task, completed=done, visible=True, description=f"{rate:.0f} tokens/s")

        yield report


def _json(captured: Trace) -> dict[str, object]:
    return {
        **about_json(captured.about),
        "tables": {name: asdict(table) for name, table in captured.tables.items()},
        "requests": [request_json(entry) for entry in captured.entries],
    }
