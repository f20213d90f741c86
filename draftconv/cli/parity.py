"""`draftconv parity`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from draftconv.cli.options import command_line, format_option, reading_options
from draftconv.errors import WriteError
from draftconv.parity.semantics import SEMANTICS
from draftconv.parity.trace import DTYPES

if TYPE_CHECKING:
    from draftconv.parity.report import Comparison, Report
    from draftconv.parity.report.tables import Table

EPILOG = """\b
Examples:
  draftconv parity drafter out --trace trace
  draftconv parity drafter --fake-quant w4a16 --trace trace --margin 0.02 --report report
  draftconv parity drafter --self-test --trace trace
"""

STAGES = {"reading": "bytes", "replaying": "tokens"}


@click.command(epilog=EPILOG)
@click.argument("reference")
@click.argument("candidates", nargs=-1, metavar="[CANDIDATE]...")
@click.option("--trace", "trace", required=True, metavar="DIR", help="What the target did, from `draftconv trace`.")
@click.option(
    "--margin", type=click.FloatRange(0, 1, max_open=True), metavar="SHARE",
    help="Loss of accept length that is allowed, 0.02 for 2 %; 0 asks for equal counts.  "
    "[default: 0; with --fake-quant 0.01 for 8-bit weights, 0.02 for 4-bit ones]",
)  # fmt: skip
@click.option("--depth", type=click.IntRange(1), default=3, show_default=True, metavar="K",
              help="Drafted tokens per step.")  # fmt: skip
@click.option(
    "--semantics", type=click.Choice(SEMANTICS), default="vllm", show_default=True,
    help="Whose rule decides between the drafter's embedding and the target's; SGLang and TensorRT-LLM take the "
    "target's.",
)  # fmt: skip
@click.option("--fake-quant", multiple=True, metavar="RECIPE",
              help="Add a candidate: REFERENCE as this recipe would leave it. May be repeated.")  # fmt: skip
@click.option("--attribute", is_flag=True, help="Measure what each changed tensor costs on its own.")
@click.option("--self-test", is_flag=True, help="Replay drafters broken on purpose; exit 1 if one is not noticed.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N requests of the trace.")
@click.option("--extend", type=click.Path(path_type=Path), metavar="REPORT",
              help="Add these requests to an inconclusive report; allowed once.")  # fmt: skip
@click.option("--report", "out", type=click.Path(path_type=Path), metavar="DIR",
              help="Write report.html, report.md, report.json, records.jsonl and junit.xml.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the directory of --report if it holds a report.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True,
              help="What replay computes in.")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Where torch runs the drafters.")
@reading_options
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    reference: str,
    candidates: tuple[str, ...],
    trace: str,
    out: Path | None,
    overwrite: bool,
    form: str,
    **options: object,
) -> None:
    """Judge whether each CANDIDATE accepts as much as REFERENCE.

    Every drafter is replayed on the target's own text and hidden states, step by step as an engine
    would, and compared on the same steps. Exit code 0 when every candidate passes, 1 when one fails, 3
    when the trace is too small to tell, 4 when the measurement itself is not to be trusted.

    --from and --aux-convention are about all drafters.
    """
    from draftconv.api.parity import ParityOptions, exit_code, parity
    from draftconv.cli import output
    from draftconv.parity.report import refuse_place, write_report

    if out is not None:
        refuse_place(out, overwrite=overwrite)
    chosen = ParityOptions(**options, command=_recorded(command_line(ctx)))  # type: ignore[arg-type]
    with output.stages(STAGES) as progress:
        report = parity(reference, candidates, trace=trace, options=chosen, progress=progress)
    if out is not None:
        try:
            write_report(report, out, decode=_decoder(Path(trace)), overwrite=overwrite)
        except WriteError:
            _print(ctx, report, None, form)  # a full disk does not cost what was measured
            raise
    _print(ctx, report, out, form)
    sys.exit(exit_code(report))


def _print(ctx: click.Context, report: Report, out: Path | None, form: str) -> None:
    from draftconv.cli import output

    match form:
        case "json":
            output.print_json(_json(report))
        case "human":
            _show(ctx, report, out)


def _recorded(words: Sequence[str]) -> tuple[str, ...]:
    """The command for the report, which names no place on this machine: an absolute path by its last part."""
    return tuple(Path(word).name if Path(word).is_absolute() else word for word in words)


def _decoder(trace: Path) -> Callable[..., str] | None:
    """Token ids to text, when the trace has a tokenizer and something here can read it."""
    from draftconv.cli import output
    from draftconv.parity.trace import open_trace

    path = open_trace(trace).tokenizer
    if path is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        output.print_notes(["the report shows token ids: `pip install tokenizers` makes them text"])
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower; the figures stand without it
        output.print_notes([f"the report shows token ids: {path.name} of the trace cannot be read: {error}"])
        return None
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


# ── for a person ───────────────────────────────────────────────────────────────────


def _show(ctx: click.Context, report: Report, out: Path | None) -> None:
    from draftconv.cli import output
    from draftconv.parity.report import tables, words

    screen = output.console()
    if report.comparisons:
        screen.print(_table(tables.headline(report)))
    for comparison in report.comparisons:
        if comparison.diagnostics.attribution:
            found = tables.attribution(comparison)
            screen.print(_table(replace(found, title=f"{found.title} of {comparison.candidate}")))
    if report.controls:
        screen.print(_table(tables.controls(report)))
    for comparison in report.comparisons:
        screen.print(output.text(words.sentence(comparison)))
        for line in _beside(comparison):
            screen.print(output.text(f"  {line}", "dim"))
    if report.controls:
        screen.print(output.text(words.controls(report)))
    if out is not None:
        screen.print(output.text(f"Report: {out / 'report.html'}"))
    if len(report.comparisons) == 1 and (more := report.comparisons[0].verdict.more_prompts) and out is not None:
        output.print_notes([f"with a trace of {more} other prompts, this run can be extended"])
        changes = {"trace": "MORE", "limit": None, "extend": out, "out": f"{out}-extended", "overwrite": None}
        output.print_next(command_line(ctx, **changes))


def _beside(comparison: Comparison) -> Iterator[str]:
    """What the verdict's sentence leaves out."""
    verdict = comparison.verdict
    match verdict.outcome:
        case "void":
            yield from verdict.reasons[1:]
        case "fail" if verdict.gate.margin is None:
            yield from verdict.reasons
        case "fail":
            yield from verdict.reasons[1:-1]  # further categories; the last is the figures
        case "inconclusive":
            yield verdict.reasons[-1]  # the outlook
    yield from verdict.notes


def _table(table: Table) -> object:
    from draftconv.cli import output

    return output.table(
        table.title,
        [column.title for column in table.columns],
        [[output.styled(cell) for cell in row] for row in table.rows],
    )


# ── for a program ──────────────────────────────────────────────────────────────────


def _json(report: Report) -> dict[str, object]:
    import json

    from pydantic import TypeAdapter

    from draftconv.api.parity import exit_code
    from draftconv.parity.report import Report

    found = json.loads(TypeAdapter(Report).dump_json(report, exclude={"records"}))
    return {"exit_code": exit_code(report), **found}
