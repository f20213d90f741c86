"""`draftconv diff`."""

from __future__ import annotations

import sys

import click

from draftconv.api.diff import Difference, Differences, diff
from draftconv.cli.options import format_option, target_options

EPILOG = """\b
Examples:
  draftconv diff kimi-k2.5-eagle3 out
  draftconv diff run1/step-2000 run1/step-4000 --format json
"""


@click.command(epilog=EPILOG)
@click.argument("left")
@click.argument("right")
@target_options
@format_option
def command(left: str, right: str, target: str | None, target_layers: int | None, form: str) -> None:
    """What differs between the drafters LEFT and RIGHT: facts, tensors, config keys.

    Tensors are compared under canonical names. Exit code 1 when anything differs.
    """
    found = diff(left, right, target=target, target_layers=target_layers)
    _render(found, form)
    sys.exit(0 if found.none else 1)


def _render(found: Differences, form: str) -> None:
    from draftconv.cli import output

    kinds = (("facts", found.facts), ("tensors", found.tensors), ("config", found.config))
    match form:
        case "json":
            output.print_json({name: [_json(row) for row in rows] for name, rows in kinds})
        case "human":
            screen = output.console()
            for name, rows in kinds:
                if rows:
                    cells = [(output.text(r.what), output.text(r.left), output.text(r.right)) for r in rows]
                    screen.print(output.table(name.capitalize(), ("", "left", "right"), cells))
            if found.none:
                screen.print("No difference.")


def _json(row: Difference) -> dict[str, str]:
    return {"what": row.what, "left": row.left, "right": row.right}
