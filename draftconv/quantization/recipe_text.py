"""A recipe as a file: what `recipe_schema.parse` reads back as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from draftconv.quantization.recipes import Recipe
from draftconv.quantization.scheme import Scheme


def recipe_text(recipe: Recipe) -> str:
    """The recipe in YAML, without its name, which is the file's."""
    import yaml

    roles = {"roles": {role: _part(scheme) for role, scheme in recipe.roles.items()}} if recipe.roles else {}
    form = {"format": recipe.format} if recipe.format else {}
    stays = {"may_stay": list(recipe.may_stay)} if recipe.may_stay else {}
    whole = {"about": recipe.about, **_part(recipe.scheme), **roles, **form, **stays, "exclude": list(recipe.exclude)}
    text: str = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=1000)
    return text


def _part(scheme: Scheme) -> Mapping[str, object]:
    """What some weights become; nothing of what is usual."""
    weights = {key: value for key, value in asdict(scheme.weights).items() if value is not None}
    part: dict[str, object] = {"weights": weights}
    if scheme.inputs is not None:
        inputs = asdict(scheme.inputs)
        part["activations"] = inputs | {"scale": "dynamic" if inputs.pop("dynamic") else "static"}
    if scheme.rounding != "nearest":
        part["rounding"] = scheme.rounding
    if scheme.sequential:
        part["sequential"] = True
    return part
