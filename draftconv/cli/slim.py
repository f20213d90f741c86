"""`draftconv slim`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from draftconv.cli.examples import ENGINE
from draftconv.cli.options import command_line, format_option, options_of
from draftconv.options import arguments_of, without_places
from draftconv.search.options import SlimOptions, Stage

if TYPE_CHECKING:
    from draftconv.search.result import SlimResult
    from draftconv.search.run import Search

STAGES: Mapping[str, str] = {
    **dict.fromkeys(get_args(Stage), "drafters"),
    "counting": "bytes",
    "replaying": "tokens",
}

EPILOG = f"""\b
Examples:
  draftconv slim drafter out --for {ENGINE}:b200 --trace trace --max-loss 0.01
  draftconv slim drafter out --for {ENGINE}:b200 --trace trace --max-loss 0.01 --dry-run
  draftconv slim drafter out --for {ENGINE}:mi325x --trace trace --max-loss 0.02 --report report
  draftconv slim drafter out --for {ENGINE}:b200 --trace trace --max-loss 0.01 --counts answers.jsonl --target target
"""


@click.command(epilog=EPILOG)
@click.argument("drafter")
@click.argument("out", type=click.Path(path_type=Path))
@options_of(SlimOptions)
@click.option("--report", "report", type=click.Path(path_type=Path), metavar="DIR",
              help="Write slim.json, slim.md, pareto.svg and recipe.yaml.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be measured and how long it takes, and write nothing.")
@format_option
@click.pass_context
def command(
    ctx: click.Context, /, drafter: str, out: Path, report: Path | None, dry_run: bool, fmt: str, **options: Any
) -> None:
    """Find the smallest drafter that loses no more accept length than --max-loss on an engine, and write it to OUT.

    Everything that this engine runs on its hardware is tried on the layers, the head and fc of DRAFTER, replayed on one
    half of the trace, and combined; with --counts the head may have fewer rows too. A few of the combinations are then
    judged on the other half, which the search never saw, and the smallest that passes is written. The exit code is 0
    when one passes, and 3 when none does: then the table is all there is.
    """
    from draftconv.api.slim import prepare
    from draftconv.checkpoint.kept_work import room_of
    from draftconv.cli import output
    from draftconv.cli.interrupted import keeping
    from draftconv.conversion.plan import refuse_place
    from draftconv.search.outline import foretold
    from draftconv.search.report import refuse_slim_place
    from draftconv.search.run import run_search

    options["command"] = without_places(command_line(ctx))
    if dry_run:
        _show_plan(prepare(drafter, SlimOptions(**options)), fmt)
        return
    refuse_place(drafter, out, overwrite=options["overwrite"])
    if report is not None:
        refuse_slim_place(report, out, overwrite=options["overwrite"])
    with output.stages(STAGES) as progress:
        search = prepare(drafter, SlimOptions(**options, progress=progress))
        output.print_notes([foretold(search.unseen, search.foreseen_loss, search.options.max_loss)])
        with keeping(room_of(out, "search"), "measured"):
            result = run_search(search, out, announce=lambda line: output.print_notes([line]))
    if report is not None:
        result.save(report, overwrite=options["overwrite"])
    _show(result, drafter, out, report, fmt)
    sys.exit(result.exit_code)


# ── for a person, and for a program ────────────────────────────────────────────────


def _show(result: SlimResult, drafter: str, out: Path, report: Path | None, fmt: str) -> None:
    from draftconv.cli import output
    from draftconv.cli.loudness import is_verbose
    from draftconv.search.report import slim_json

    match fmt:
        case "json":
            output.print_json(slim_json(result))
        case "human":
            output.show([*result.blocks(), *(result.details() if is_verbose() else ())])
            if report is not None:
                output.show([f"Report: {report / 'slim.md'}"])
            if result.again is not None:
                output.show([f"Wrote {out}"])
                proof = arguments_of(result.again.proof)
                output.print_next(["draftconv", "verify", str(out), "--against", drafter, *proof])


def _show_plan(search: Search, fmt: str) -> None:
    from draftconv.cli import output

    plan = search.outline()
    match fmt:
        case "json":
            output.print_json(plan.document())
        case "human":
            output.show(plan.blocks())
            output.print_next(command_line(click.get_current_context(), dry_run=None))
