"""What ships under a name: recipes with what each becomes on every engine, hardware profiles, prompt suites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from draftconv.conversion.options import QuantizeOptions
from draftconv.drafter.shipped_files import SUFFIXES, find_written
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.deployment import resolve
from draftconv.engines.offers import NoOffer, Offer, offers
from draftconv.errors import DraftconvError, Refused, UsageError, did_you_mean
from draftconv.live.profiles import Profile, find_profile, profile_names
from draftconv.options import (
    ACCEPT_DETECTED,
    AUX_CONVENTION,
    LAYOUT,
    NUM_SPECULATIVE_TOKENS,
    TARGET,
    Place,
    Several,
    option,
    python_only,
    several,
    takes,
)
from draftconv.quantization.recipes import Recipe, find_recipe, recipe_names
from draftconv.search.costs import RecipeCosts

__all__ = ["NoOffer", "Offer", "RecipesOptions", "recipe_costs_for", "recipes_for"]

Kind = Literal["recipe", "profile", "suite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipesOptions:
    """Whom recipes are listed for."""

    engines: Several = option(
        (),
        "List what runs on this engine and what is multiplied there. May be repeated.",
        flag="--for",
        metavar="ENGINE[@VERSION][:HARDWARE]",
    )
    drafter: Place | None = option(
        None,
        "With --for ENGINE:HARDWARE: what each recipe makes of this drafter: its size, and what a draft step reads.",
        metavar="DRAFTER",
    )
    trace: Place | None = option(
        None,
        "With --drafter: replay what each recipe would cost it, half of the prompts calibrating GPTQ.",
        metavar="DIR",
    )
    num_speculative_tokens: int = option(3, replace(NUM_SPECULATIVE_TOKENS, former=()))
    target: Place | None = option(None, TARGET)
    layout: str | None = option(None, LAYOUT)
    aux_convention: str | None = option(None, AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    progress: Callable[[int, int], None] | None = python_only(
        None, "told how many recipes are replayed, and of how many"
    )


@takes(RecipesOptions)
def recipes_for(name: str | None, options: RecipesOptions) -> tuple[tuple[Offer, ...], tuple[NoOffer, ...]]:
    """What of the shipped recipes, or of the one named, runs on engines; then what does not, and why.

    Raises:
        UsageError: unknown engine, hardware or recipe.
    """
    specs = [parse_engine(engine) for engine in several(options.engines)]
    recipes = listed() if name is None else (find_recipe(name),)
    found = [offers(spec, recipes) for spec in specs]
    return tuple(offer for runs, _ in found for offer in runs), tuple(none for _, refused in found for none in refused)


@takes(RecipesOptions)
def recipe_costs_for(name: str | None, options: RecipesOptions) -> RecipeCosts:
    """What each of the shipped recipes, or the one named, makes of a drafter on one engine and its hardware.

    Raises:
        UsageError: no drafter, no engine or several, no hardware, or the trace is of another target.
        Refused: the drafter is quantized already, or the engine does not run it.
        BadCheckpoint, Undecided: the drafter or the trace cannot be read.
    """
    from draftconv.search.costing import recipe_costs
    from draftconv.search.opening import parse_machine

    engines = several(options.engines)
    if options.drafter is None or len(engines) != 1:
        raise UsageError(
            "--drafter is about one drafter on one machine", cure="write --for ENGINE:HARDWARE --drafter DRAFTER"
        )
    recipes = listed() if name is None else (find_recipe(name),)
    quantize = QuantizeOptions(
        recipe=name or "every recipe",
        engines=engines,
        target=options.target,
        layout=options.layout,
        aux_convention=options.aux_convention,
        accept_detected=options.accept_detected,
    )
    return recipe_costs(
        options.drafter,
        parse_machine(engines[0]),
        recipes,
        quantize,
        None if options.trace is None else Path(options.trace),
        options.num_speculative_tokens,
        options.progress or (lambda *_: None),
    )


@dataclass(frozen=True, slots=True)
class RecipeSupport:
    """One recipe on one engine and hardware.

    Attributes:
        format: what would be written; empty where the recipe has no form.
        told: what runs there, or why nothing does and which recipe is nearest.
    """

    engine: str
    format: str
    told: str


def listed() -> tuple[Recipe, ...]:
    """The shipped recipes in alphabetical order."""
    return tuple(find_recipe(name) for name in recipe_names())


def forms(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Engine → hardware → the format that serves a recipe there; empty where it has no form."""
    return {
        engine: {hw: _support_of(recipe, f"{engine}:{hw}").format for hw in ENGINES[engine].hardware}
        for engine in ENGINES
    }


def listed_profiles() -> tuple[Profile, ...]:
    """The shipped profiles in alphabetical order."""
    return tuple(find_profile(name) for name in profile_names())


def kind_of(spec: str) -> Kind:
    """What a name, or the path of a file, stands for.

    Raises:
        UsageError: nothing that ships has this name.
    """
    from draftconv.traces.suites import suites

    if spec.endswith(SUFFIXES):
        return "profile" if _is_profile(Path(spec)) else "recipe"
    names: dict[str, Kind] = {
        **dict.fromkeys(recipe_names(), "recipe"),
        **dict.fromkeys(profile_names(), "profile"),
        **dict.fromkeys(suites(), "suite"),
    }
    name = spec.lower()
    if name not in names:
        raise UsageError(
            f"no recipe, profile or suite is called {spec}",
            why=f"`draftconv recipes` lists the {len(names)} that are shipped",
            cure=did_you_mean(name, names, "a recipe or profile of your own is given by its path, ending in .yaml"),
        )
    return names[name]


def _is_profile(path: Path) -> bool:
    """True for YAML that names an engine; what cannot be read is left to whoever reads it as a recipe."""
    import yaml

    from draftconv.drafter.yaml_file import parse_yaml

    try:
        data = parse_yaml(find_written(str(path), "recipe", ()).text, path.name)
    except (DraftconvError, yaml.YAMLError, ValueError, OverflowError):
        return False
    return isinstance(data, dict) and "engine" in data


def served(name: str) -> tuple[Recipe, tuple[RecipeSupport, ...]]:
    """A recipe, shipped or of the user's own, and where it runs.

    Raises:
        UsageError: there is no such recipe, or its file is not one.
    """
    recipe = find_recipe(name)
    specs = [f"{name}:{hardware}" for name, engine in ENGINES.items() for hardware in engine.hardware]
    return recipe, tuple(_support_of(recipe, spec) for spec in specs)


def _support_of(recipe: Recipe, spec: str) -> RecipeSupport:
    try:
        deployment = resolve(recipe, parse_engine(spec))
    except Refused as refusal:
        return RecipeSupport(spec, "", f"no form: {refusal.why}; {refusal.cure}")
    return RecipeSupport(spec, deployment.formats, deployment.told)
