"""`draftconv diff`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from draftconv.api.diff import Difference, Differences, DiffOptions, diff
from draftconv.cli.options import format_option, options_of
from draftconv.layouts.reading_options import reading_json

if TYPE_CHECKING:
    from rich.text import Text

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


ONE = {"facts": "fact", "tensors": "tensor", "config keys": "config key"}


def _render(found: Differences, form: str) -> None:
    from draftconv.cli import output

    kinds = (("facts", found.facts), ("tensors", found.tensors), ("config keys", found.config))
    output.print_readings(form, found.left, found.right)
    match form:
        case "json":
            sides = {"readings": {"left": reading_json(found.left), "right": reading_json(found.right)}}
            output.print_json({name.split()[0]: [_json(row) for row in rows] for name, rows in kinds} | sides)
        case "human":
            screen = output.console()
            for name, rows in kinds:
                if rows:
                    cells = [(output.text(r.what), _side(r.left), _side(r.right)) for r in rows]
                    screen.print(output.table(name.capitalize(), ("", "left", "right"), cells))
            counts = [f"{len(rows)} {name if len(rows) > 1 else ONE[name]}" for name, rows in kinds if rows]
            output.write("No difference." if found.none else f"Different: {', '.join(counts)}.")


def _side(value: str) -> Text:
    from draftconv.cli import output

    return output.text(value) if value else output.text("absent", "dim")


def _json(row: Difference) -> dict[str, str]:
    return {"what": row.what, "left": row.left, "right": row.right}
