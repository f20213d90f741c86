"""`draftconv accept`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftconv.cli.options import command_line, format_option, options_of
from draftconv.cli.replaying import STAGES, decoder
from draftconv.errors import WriteError
from draftconv.options import without_places
from draftconv.replay.options import AcceptOptions

if TYPE_CHECKING:
    from draftconv.display import Block
    from draftconv.report.acceptance.model import AcceptanceReport

EPILOG = """\b
Examples:
  draftconv accept drafter --trace trace
  draftconv accept drafter out --trace trace -k 5 --report report
  draftconv accept drafter --trace trace --min-al 2.4
"""


@click.command(epilog=EPILOG)
@click.argument("drafters", nargs=-1, required=True, metavar="DRAFTER...")
@options_of(AcceptOptions)
@click.option("--report", "out", type=click.Path(path_type=Path), metavar="DIR",
              help="Write accept.html, accept.md, junit.xml and accept.json, a baseline for parity.")  # fmt: skip
@click.option("--overwrite", is_flag=True,
              help="Replace the directory of --report if it holds such a report and nothing else.")  # fmt: skip
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    drafters: tuple[str, ...],
    out: Path | None,
    overwrite: bool,
    fmt: str,
    **options: Any,
) -> None:
    """Measure how much each DRAFTER accepts on the text of a trace.

    Every drafter is replayed on the target's own text and hidden states, once, and looked at on its own: accept length
    for every number of drafted tokens, by category, language and length of context, how each drafted token fares, and
    what a reduced vocabulary costs. With --min-al the exit code is 0 when every drafter lies above it, 1 when one lies
    below, 3 when there is too little to tell.
    """
    from draftconv.api.accept import accept, accept_exit_code
    from draftconv.cli import output
    from draftconv.report.acceptance.write import refuse_acceptance_place

    if out is not None:
        refuse_acceptance_place(out, overwrite=overwrite)
    options["command"] = without_places(command_line(ctx))
    with output.stages(STAGES) as progress:
        report = accept(drafters, **options, progress=progress)
    if out is not None:
        try:
            report.save(out, decode=decoder(Path(options["trace"])), overwrite=overwrite)
        except WriteError:
            _print(report, None, fmt)  # a full disk does not cost what was measured
            raise
    _print(report, out, fmt)
    sys.exit(accept_exit_code(report))


def _print(report: AcceptanceReport, out: Path | None, fmt: str) -> None:
    from draftconv.cli import output
    from draftconv.cli.loudness import is_verbose

    facts = [arm.facts for arm in report.arms]
    output.print_warnings(dict.fromkeys(each["doubtful"] for each in facts if "doubtful" in each))
    match fmt:
        case "json":
            output.print_json(_json(report))
        case "human":
            output.show(dict.fromkeys(each["read"] for each in facts if "read" in each))
            output.show(_spaced([*report.blocks(), *(report.details() if is_verbose() else ())]))
            if out is not None:
                output.show([f"Report: {out / 'accept.html'}"])


def _spaced(blocks: Iterable[Block]) -> Iterator[Block]:
    """An empty line between a sentence and the table after it, which begins another part."""
    after_sentence = False
    for block in blocks:
        is_sentence = isinstance(block, str)
        if after_sentence and not is_sentence:
            yield ""
        yield block
        after_sentence = is_sentence


def _json(report: AcceptanceReport) -> dict[str, object]:
    """The document of accept.json without its records."""
    import json

    from draftconv.api.accept import accept_exit_code
    from draftconv.report.acceptance.write import document_json

    document = json.loads(document_json(report))
    del document["records"], document["records_sha256"]
    return {"exit_code": accept_exit_code(report), **document}
