"""`draftconv diff`."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftconv.api.diff import Difference, Differences, DiffOptions, diff
from draftconv.cli.options import format_option, options_of
from draftconv.layouts.reading_options import reading_json

EPILOG = """\b
Examples:
  draftconv diff kimi-k2.5-eagle3 out
  draftconv diff run1/step-2000 run1/step-4000 --format json
"""


@click.command(epilog=EPILOG)
@click.argument("left")
@click.argument("right")
@options_of(DiffOptions)
@format_option
def command(left: str, right: str, form: str, **told: Any) -> None:
    """What differs between the drafters LEFT and RIGHT: facts, tensors, config keys.

    Tensors are compared under canonical names. Exit code 1 when anything differs.
    """
    found = diff(left, right, **told)
    _render(found, form)
    sys.exit(0 if found.none else 1)


def _render(found: Differences, form: str) -> None:
    from draftconv.cli import output

    output.print_readings(form, found.left, found.right)
    match form:
        case "json":
            sides = {"readings": {"left": reading_json(found.left), "right": reading_json(found.right)}}
            rows = {kind.split()[0]: [_json(row) for row in rows] for kind, rows in found.kinds.items()}
            output.print_json(rows | sides)
        case "human":
            output.show(found.blocks())


def _json(row: Difference) -> dict[str, str]:
    return {"what": row.what, "left": row.left, "right": row.right}
