"""`draftconv verify`."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftconv.api.verify import ComparedItem, Verification, VerifyOptions, verify
from draftconv.cli.options import format_option, options_of
from draftconv.layouts import layout as find_layout
from draftconv.layouts.reading_options import reading_json

EPILOG = """\b
Examples:
  draftconv verify out --against kimi-k2.5-eagle3
  draftconv verify out --against kimi-k2.5-eagle3 --format json
"""


@click.command(epilog=EPILOG)
@click.argument("out")
@click.option("--against", required=True, metavar="SOURCE", help="The checkpoint that OUT was made from.")
@options_of(VerifyOptions)
@format_option
def command(out: str, against: str, form: str, **told: Any) -> None:
    """Prove that OUT is its source: every bit compared, every difference declared.

    Exit code 1 when a tensor or fact differs and no draftconv.json of OUT declares it.
    """
    from draftconv.cli import output

    with output.progress("comparing") as report:
        found = verify(out, against, **told, progress=report)
    output.print_readings(form, found.output, found.source)
    match form:
        case "json":
            output.print_json(_json(found))
        case "human":
            output.show(found.blocks())
            writer = find_layout(found.output.detection.layout).writer
            if found.passed and told["target"] and writer and writer.serves:
                output.print_next(["draftconv", "serve", out, "--for", writer.serves[0], "--target", told["target"]])
    sys.exit(0 if found.passed else 1)


def _json(found: Verification) -> dict[str, object]:
    return {
        "passed": found.passed,
        "record": found.record,
        "tensors": [_row(row) for row in found.tensors],
        "facts": [_row(row) for row in found.facts],
        "directory": [_row(row) for row in found.directory],
        "readings": {"output": reading_json(found.output), "source": reading_json(found.source)},
    }


def _row(row: ComparedItem) -> dict[str, str]:
    return {"what": row.what, "outcome": row.outcome, "how": row.how}
