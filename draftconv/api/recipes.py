"""The shipped recipes, and what each becomes on every engine and its hardware."""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.kernels import hardware_of, resolve
from draftconv.errors import Refused
from draftconv.quantization.recipes import Recipe, find_recipe, recipe_names


@dataclass(frozen=True, slots=True)
class Served:
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
    return {engine: {hw: _served(recipe, f"{engine}:{hw}").format for hw in hardware_of(engine)} for engine in ENGINES}


def served(name: str) -> tuple[Recipe, tuple[Served, ...]]:
    """A recipe, shipped or of the user's own, and where it runs.

    Raises:
        UsageError: there is no such recipe, or its file is not one.
    """
    recipe = find_recipe(name)
    specs = [f"{engine}:{hardware}" for engine in ENGINES for hardware in hardware_of(engine)]
    return recipe, tuple(_served(recipe, spec) for spec in specs)


def _served(recipe: Recipe, spec: str) -> Served:
    try:
        found = resolve(recipe, parse_engine(spec))
    except Refused as refusal:
        return Served(spec, "", f"no form: {refusal.why}; {refusal.cure}")
    style = f" ({found.style})" if found.style else ""
    return Served(spec, f"{found.format}{style}", found.executed)
