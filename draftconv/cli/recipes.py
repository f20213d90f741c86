"""`draftconv recipes`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from draftconv.cli.options import format_option

EPILOG = """\b
Examples:
  draftconv recipes
  draftconv recipes w4a8
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@format_option
def command(name: str | None, form: str) -> None:
    """List the shipped recipes, or show one: its numbers, what it leaves alone, and what runs where."""
    from dataclasses import asdict

    from draftconv.api.recipes import forms, listed, served
    from draftconv.cli import output
    from draftconv.engines import ENGINES

    if name is None:
        recipes = listed()
        match form:
            case "json":
                output.print_json(
                    [{"name": r.name, "about": r.about, "scheme": str(r.scheme), "formats": forms(r)} for r in recipes]
                )
            case "human":
                rows = [(output.text(r.name), output.text(r.about), output.text(r.scheme)) for r in recipes]
                screen = output.console()
                screen.print(output.table("Recipes", ("recipe", "", "numbers"), rows))
                titles = tuple(engine.title for engine in ENGINES.values())
                cells = (
                    (output.text(r.name), *(output.lines(_by_format(found)) for found in forms(r).values()))
                    for r in recipes
                )
                screen.print(output.table("What is written for whom", ("recipe", *titles), cells))
                output.print_next(["draftconv", "recipes", recipes[0].name])
        return
    recipe, table = served(name)
    match form:
        case "json":
            output.print_json(
                {
                    "name": recipe.name,
                    "about": recipe.about,
                    "scheme": str(recipe.scheme),
                    "exclude": list(recipe.exclude),
                    "engines": [asdict(row) for row in table],
                }
            )
        case "human":
            screen = output.console()
            card = [("numbers", recipe.scheme), ("left alone", ", ".join(recipe.exclude))]
            screen.print(output.card(f"Recipe {recipe.name}: {recipe.about}", card))
            rows = [(output.text(row.engine), output.text(row.format), output.text(row.told)) for row in table]
            screen.print(output.table("Where it runs", ("engine", "format", "what runs there"), rows))


def _by_format(found: Mapping[str, str]) -> list[str]:
    """Each format, and the hardware that it is written for."""
    hardware: dict[str, list[str]] = {}
    for name, form in found.items():
        hardware.setdefault(form or "no form", []).append(name)
    return [f"{form}: {', '.join(names)}" for form, names in hardware.items()]
