"""`draftconv trace`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from draftconv.api.trace import Sizing, TraceOptions, trace
from draftconv.checkpoint.text import safe
from draftconv.cli.options import format_option, reading_options_of_each
from draftconv.traces.prompts import DEFAULT_SUITE
from draftconv.traces.running import TRANSFORMERS, runners
from draftconv.traces.trace import DTYPES, PARTIAL, Trace

EPILOG = f"""\b
Examples:
  draftconv trace --target Qwen/Qwen3-8B --prompts mt-bench --out qwen3-mt-bench
  draftconv trace --target target --prompts mine.jsonl --out trace --drafter drafter --device cuda
  draftconv trace --target Kimi-K2.6 --prompts mt-bench --out kimi --engine {runners()[1]} --tensor-parallel 8
"""


class Numbers(click.ParamType[tuple[int, ...]]):
    """Numbers with commas between: `2,4,5`."""

    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers like 2,4,5", param, ctx)


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
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="CKPT",
    help="Keep the boundaries that this drafter reads; may be repeated.",
)
@reading_options_of_each("the first drafter")
@click.option(
    "--boundaries",
    type=Numbers(),
    default=(),
    metavar="B,B,…",
    help="Keep these boundaries: b is the residual stream entering layer b, the layer count is what "
    "leaves the last one.  [default: 2, L//2, L-3]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Counted tokens per request at most.  [default: the suite's, else 256]",
)
@click.option(
    "--depth",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    metavar="K",
    help="Tokens kept beyond the counted end: the longest draft that can be replayed.",
)
@click.option("--ignore-eos", is_flag=True, help="Count all of --max-tokens, also what follows an end-of-text token.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N prompts.")
@click.option(
    "--chat/--raw",
    default=None,
    help="Apply the chat template, or take text as it is.  [default: --chat if the tokenizer has a template]",
)
@click.option("--device", metavar="DEVICE", help="Where torch runs the target.  [default: a GPU if there is one]")
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="What it computes in.  [default: the checkpoint's own]")
@click.option(
    "--batch", type=click.IntRange(1), default=8, show_default=True, metavar="N", help="Prompts that run together."
)
@click.option("--lm-head", is_flag=True, help="Keep the target's lm_head beside its embed_tokens.")
@click.option(
    "--link-tables", is_flag=True, help="Record path and hash of the target's tables instead of copying them."
)
@click.option("--revision", metavar="REV", help="Branch, tag or commit of a target on the Hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run the Python code that comes with the target.")
@click.option(
    "--engine",
    type=click.Choice(runners()),
    default=TRANSFORMERS,
    show_default=True,
    help="What runs the target: transformers, or an engine for one that only an engine can hold.",
)
@click.option(
    "--url",
    metavar="URL",
    help="A running server of --engine that extracts hidden states; a wrong one is told how to start.  "
    "[default: the engine in this process]",
)
@click.option(
    "--hidden-states-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where that server writes hidden states (its shared_storage_path); they are removed once read.",
)
@click.option(
    "--tensor-parallel",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Devices that --engine in this process puts the target on.",
)
@format_option
def command(target: str, prompts: str, out: Path, form: str, **options: object) -> None:
    """Run a target once and keep what it did: tokens and hidden states, to replay drafters on.

    The target continues every prompt greedily. A run that is stopped keeps what it has; the same
    command goes on with it.
    """
    from draftconv.cli import output

    try:
        with _progress() as report:
            made = trace(target, prompts, out, TraceOptions(**options), announce=_announce, progress=report)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        if not (out / PARTIAL).exists():
            raise
        print(f"Interrupted: {safe(out)} keeps what was captured; the same command goes on.", file=sys.stderr)
        sys.exit(130)
    match form:
        case "json":
            output.print_json(_json(made))
        case "human":
            _show(made, out)


def _announce(sizing: Sizing) -> None:
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
    """A bar with tokens/s and ETA on stderr; silent when stderr is not a terminal."""
    if not sys.stderr.isatty():
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


def _show(made: Trace, out: Path) -> None:
    from draftconv.cli import output

    about = made.about
    counted, prompts = sum(e.counted for e in made.entries), sum(e.prompt for e in made.entries)
    revision = f" at {about.revision}" if about.revision else ""
    ended = sum(entry.counted < about.max_tokens for entry in made.entries)
    output.console().print(
        output.card(
            "Trace",
            (
                ("target", f"{about.target}{revision}, {about.dtype}"),
                ("prompts", f"{about.prompts}, {'chat template' if about.chat else 'as they are'}"),
                ("requests", f"{len(made.entries)} from {len({e.cluster for e in made.entries})} prompts"),
                ("tokens", f"{prompts} of prompts, {counted} counted, {about.depth} more per request"),
                ("ended early", f"{ended} of {len(made.entries)} texts"),
                ("boundaries", ", ".join(map(str, about.boundaries))),
                ("tables", ", ".join(f"{n}{' (linked)' * t.linked}" for n, t in made.tables.items())),
            ),
        )
    )
    output.print_next(["draftconv", "parity", "REFERENCE", "CANDIDATE", "--trace", str(out)])


def _json(made: Trace) -> dict[str, object]:
    return {
        **asdict(made.about),
        "tables": {name: asdict(table) for name, table in made.tables.items()},
        "requests": [asdict(entry) for entry in made.entries],
    }
