"""`draftconv recipes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from draftconv.api.recipes import RecipesOptions
from draftconv.cli.examples import ENGINE
from draftconv.cli.options import format_option, options_of
from draftconv.display import Block, Column, card, table
from draftconv.errors import UsageError

if TYPE_CHECKING:
    from draftconv.api.recipes import NoOffer, Offer
    from draftconv.live.profiles import Profile

EPILOG = f"""\b
Examples:
  draftconv recipes
  draftconv recipes w4a8
  draftconv recipes --for {ENGINE}:b200
  draftconv recipes --for {ENGINE}:b200 --drafter drafter --trace trace
  draftconv recipes b200-vllm
  draftconv recipes mt-bench
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@options_of(RecipesOptions)
@format_option
def command(name: str | None, fmt: str, engines: tuple[str, ...], **options: Any) -> None:
    """List what ships: quantization recipes, hardware profiles and prompt suites; or show one of them.

    A recipe is shown with what runs of it on every engine and hardware; a profile with what a parity run on
    its machine takes from it. NAME may be the path of a recipe or profile of your own, ending in .yaml.
    With --for the recipes, or the one named, are shown with what that engine multiplies; with --drafter too, with
    what each costs and brings there, and with --trace with the accept length that the drafter keeps.
    """
    from draftconv.api.recipes import kind_of

    if engines and name is not None and (kind := kind_of(name)) != "recipe":
        raise UsageError(f"--for is about recipes, {name} is a {kind}", cure=f"draftconv recipes {name}")
    if options["drafter"] is not None:
        _show_costs(name, engines, options, fmt)
        return
    if options["trace"] is not None:
        raise UsageError("--trace has no meaning without --drafter", cure="add --drafter DRAFTER, or leave it out")
    if engines:
        _show_offers(name, engines, fmt)
        return
    if name is None:
        _show_all(fmt)
        return
    {"recipe": _show_recipe, "profile": _show_profile, "suite": _show_suite}[kind_of(name)](name, fmt)


def _show_all(fmt: str) -> None:
    from draftconv.api.recipes import forms, listed, listed_profiles
    from draftconv.cli import output
    from draftconv.engines import ENGINES
    from draftconv.traces.suites import suites

    recipes, profiles, prompt_suites = listed(), listed_profiles(), suites()
    match fmt:
        case "json":
            output.print_json(
                {
                    "recipes": [
                        {"name": r.name, "about": r.about, "scheme": r.numbers, "formats": forms(r)} for r in recipes
                    ],
                    "profiles": [
                        {"name": p.name, "about": p.about, "engine": p.engine, "recipe": p.recipe} for p in profiles
                    ],
                    "suites": [{"name": name, "about": suite.about} for name, suite in prompt_suites.items()],
                }
            )
        case "human":
            titles = tuple(engine.title for engine in ENGINES.values())
            output.show(
                [
                    table("Recipes", "", ("recipe", "", "numbers"), ((r.name, r.about, r.numbers) for r in recipes)),
                    table(
                        "What is written for whom",
                        "",
                        ("recipe", *titles),
                        ((r.name, *map(_by_format, forms(r).values())) for r in recipes),
                    ),
                    table(
                        "Hardware profiles",
                        "",
                        ("profile", "", "recipe"),
                        ((p.name, p.about, p.recipe) for p in profiles),
                    ),
                    table(
                        "Prompt suites",
                        "",
                        ("suite", "", Column("prompts", figures=True)),
                        ((name, suite.about, suite.count) for name, suite in prompt_suites.items()),
                    ),
                ]
            )
            output.print_next(["draftconv", "recipes", recipes[0].name])


def _show_costs(name: str | None, engines: tuple[str, ...], options: Mapping[str, Any], fmt: str) -> None:
    from draftconv.api.recipes import recipe_costs_for
    from draftconv.cli import output

    with output.stages({"replaying": "recipes"}) as told:
        costs = recipe_costs_for(name, engines=engines, **options, progress=partial(told, "replaying"))
    match fmt:
        case "json":
            output.print_json(costs.document())
        case "human":
            output.show(costs.blocks())


def _show_offers(name: str | None, engines: tuple[str, ...], fmt: str) -> None:
    from dataclasses import asdict

    from draftconv.api.recipes import recipes_for
    from draftconv.cli import output

    runs, refused = recipes_for(name, engines=engines)
    match fmt:
        case "json":
            output.print_json({"runs": [asdict(row) for row in runs], "refused": [asdict(row) for row in refused]})
        case "human":
            output.show(_offer_tables(runs, refused))


def _offer_tables(runs: Sequence[Offer], refused: Sequence[NoOffer]) -> Iterator[Block]:
    for engine in dict.fromkeys([row.engine for row in runs] + [row.engine for row in refused]):
        offers = [row for row in runs if row.engine == engine]
        if offers:
            yield table(
                f"What runs on {engine}",
                "",
                ("recipe", "multiplied: weights x activations", "kernel", ""),
                ((row.recipe, row.multiplied, row.executed, _conditions(row)) for row in offers),
            )
        none = [row for row in refused if row.engine == engine]
        if none:
            yield table(
                f"What does not run on {engine}",
                "",
                ("recipe", "why", "instead"),
                ((row.recipe, row.why, row.cure) for row in none),
            )


def _conditions(offer: Offer) -> tuple[str, ...]:
    """How the row is known, and what else there is to know."""
    lines = [offer.known]
    if offer.declared != offer.activations:
        lines.append(f"declares {offer.declared}, which is ignored" + (f": take {offer.instead}" * bool(offer.instead)))
    lines += [f"not for {offer.not_for} drafters"] if offer.not_for else []
    return (*lines, *offer.notes)


def _by_format(formats: Mapping[str, str]) -> tuple[str, ...]:
    """Each format, and the hardware that it is written for."""
    hardware: dict[str, list[str]] = {}
    for name, format_id in formats.items():
        hardware.setdefault(format_id or "no form", []).append(name)
    return tuple(f"{format_id}: {', '.join(names)}" for format_id, names in hardware.items())


def _show_recipe(name: str, fmt: str) -> None:
    from dataclasses import asdict

    from draftconv.api.recipes import served
    from draftconv.cli import output

    recipe, rows = served(name)
    match fmt:
        case "json":
            output.print_json(
                {
                    "name": recipe.name,
                    "about": recipe.about,
                    "scheme": recipe.numbers,
                    "exclude": list(recipe.exclude),
                    "engines": [asdict(row) for row in rows],
                }
            )
        case "human":
            facts = [("numbers", recipe.numbers), ("left alone", ", ".join(recipe.exclude))]
            cells = ((row.engine, row.format, row.told) for row in rows)
            output.show(
                [
                    card(f"Recipe {recipe.name}: {recipe.about}", facts),
                    table("Where it runs", "", ("engine", "format", "what runs there"), cells),
                ]
            )


def _show_profile(name: str, fmt: str) -> None:
    from dataclasses import asdict

    from draftconv.cli import output
    from draftconv.live.profiles import find_profile

    profile = find_profile(name)
    match fmt:
        case "json":
            output.print_json(asdict(profile))
        case "human":
            rows = ((asked.prompts, asked.limit or "all", asked.max_tokens) for asked in profile.suites)
            columns = ("suite", Column("prompts", figures=True), Column("tokens", figures=True))
            output.show(
                [
                    card(f"Profile {profile.name}: {profile.about}", _facts(profile)),
                    table("What is asked", "", columns, rows),
                ]
            )
            target = [] if profile.target else ["--target", "TARGET"]
            output.print_next(
                [
                    "draftconv",
                    "parity",
                    "REF",
                    "CAND",
                    "--profile",
                    name,
                    *target,
                    "--launch",
                    "--run",
                    "RUN",
                    "--dry-run",
                ]
            )


def _facts(profile: Profile) -> list[tuple[str, object]]:
    import shlex

    return [
        ("engine", profile.engine),
        ("target", profile.target or "yours: --target"),
        ("devices for the target", profile.tensor_parallel),
        ("drafted tokens per step", profile.depth),
        ("server arguments", shlex.join(profile.server_args) or "none"),
        ("environment", " ".join(f"{name}={value}" for name, value in profile.environment.items()) or "as it is"),
        ("recipe", f"{profile.recipe}: {profile.executed}"),
        ("allowed loss", ", ".join(f"{kind} {margin:.1%}" for kind, margin in profile.margins.items())),
        ("proven", profile.proven),
    ]


def _show_suite(name: str, fmt: str) -> None:
    from draftconv.cli import output
    from draftconv.traces.suites import suites

    name = name.lower()
    suite = suites()[name]
    match fmt:
        case "json":
            output.print_json({"name": name, **suite.model_dump(mode="json")})
        case "human":
            facts = [
                ("data set", suite.dataset),
                ("prompts", f"{suite.count}: {suite.choice}"),
                *([("tokens of each prompt", suite.input_tokens)] if suite.input_tokens else []),
                ("tokens of each text", suite.max_tokens),
                ("licence", f"{suite.license}, redistribution {suite.redistribution}"),
                ("columns known", f"{suite.evidence}: {suite.source}"),
            ]
            output.show([card(f"Suite {name}: {suite.about}", facts)])
