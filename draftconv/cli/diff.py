"""`draftconv diff`."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftconv.api.diff import Difference, Differences, DiffOptions, diff
from draftconv.cli.options import format_option, options_of
from draftconv.layouts.drafter_reader import reading_json

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
def command(left: str, right: str, fmt: str, **keywords: Any) -> None:
    """What differs between the drafters LEFT and RIGHT: facts, tensors, config keys.

    Tensors are compared under canonical names. Exit code 1 when anything differs.
    """
    differences = diff(left, right, **keywords)
    _render(differences, fmt)
    sys.exit(0 if differences.none else 1)


def _render(differences: Differences, fmt: str) -> None:
    from draftconv.cli import output

    output.print_doubts(differences.left, differences.right)
    match fmt:
        case "json":
            sides = {"readings": {"left": reading_json(differences.left), "right": reading_json(differences.right)}}
            rows = {
                kind.split()[0]: [_difference_json(row) for row in rows] for kind, rows in differences.kinds.items()
            }
            output.print_json(rows | sides)
        case "human":
            outcome, *blocks = differences.blocks()
            output.show([outcome, *output.readings(differences.left, differences.right), *blocks])


def _difference_json(difference: Difference) -> dict[str, str]:
    return {"what": difference.what, "left": difference.left, "right": difference.right}
