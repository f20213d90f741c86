"""The shape of a recipe file, and what is said of one that has another shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, Field

from draftconv.drafter.yaml_file import YamlMapping, read_yaml
from draftconv.errors import UsageError, did_you_mean
from draftconv.quantization.exclusions import ROLES, is_pattern
from draftconv.quantization.recipes import Recipe, TableRole, format_names
from draftconv.quantization.scheme import (
    Granularity,
    InputDtype,
    InputGranularity,
    InputScheme,
    RoundingName,
    ScaleDtype,
    ScaleRuleName,
    Scheme,
    WeightDtype,
    WeightScheme,
)

Text = Annotated[str, Field(min_length=1)]
DTYPE: Any = Field(validation_alias=AliasChoices("dtype", "grid"))
GRANULARITY: Any = Field(validation_alias=AliasChoices("granularity", "per"))
"""The second names are those of `draftconv.json`: a recipe that it holds is one that can be read."""
if TYPE_CHECKING:
    Known = str
else:
    Known = Literal[format_names()]


class WeightsSchema(YamlMapping):
    """`weights:` of a recipe."""

    dtype: WeightDtype = DTYPE
    granularity: Granularity = GRANULARITY
    group: int | None = None
    scale_rule: ScaleRuleName
    scale_dtype: ScaleDtype


class ActivationsSchema(YamlMapping):
    """`activations:` of a recipe; left out, they stay in 16 bits."""

    dtype: InputDtype = DTYPE
    granularity: InputGranularity = GRANULARITY
    scale: Literal["dynamic", "static"]


class PartSchema(YamlMapping):
    """What some weights become."""

    weights: WeightsSchema
    activations: ActivationsSchema | None = None
    rounding: RoundingName = "nearest"
    sequential: bool = False


class RecipeSchema(PartSchema):
    """A whole recipe: the part of most weights, and those of roles that have one of their own."""

    about: Text
    format: Known | None = None
    exclude: list[Text]
    roles: dict[Text, PartSchema] = Field(default_factory=dict)
    may_stay: list[TableRole] = Field(default_factory=list)


def parse(text: str, name: str, where: str) -> Recipe:
    """Read a recipe.

    Args:
        name: what the recipe is called from now on.
        where: the file, for messages.

    Raises:
        UsageError: it is no YAML or no recipe; the message names the key.
    """
    file = read_yaml(
        RecipeSchema,
        text,
        where,
        noun="recipe",
        why="a key that is misread would quantize something else than was meant",
        example="recipes/w4a16.yaml",
    )
    scheme = _scheme(file, where)
    schemes = {role: _scheme(part, f"{where}: roles: {role}") for role, part in file.roles.items()}
    for key, entries in (("exclude", file.exclude), ("roles", file.roles)):
        for entry in entries:
            if entry not in ROLES and not is_pattern(entry):
                raise UsageError(
                    f"{where}: {key}: {entry} is neither a role nor the pattern of a tensor name",
                    why=f"roles: {', '.join(ROLES)}; a pattern holds a . or a *, as in layers.0.mlp.*",
                    cure=did_you_mean(entry, ROLES),
                )
    if both := [role for role in schemes if role in file.exclude]:
        raise UsageError(
            f"{where}: {both[0]} is excluded, and has a scheme among roles",
            why="what is excluded stays as it is",
            cure=f"take {both[0]} out of exclude, or out of roles",
        )
    if idle := [role for role in file.may_stay if role in file.exclude]:
        raise UsageError(
            f"{where}: may_stay: {idle[0]} is excluded",
            why="it stays everywhere then",
            cure=f"take {idle[0]} out of exclude, or out of may_stay",
        )
    return Recipe(name, file.about, scheme, tuple(file.exclude), file.format, schemes, tuple(file.may_stay))


def _scheme(part: PartSchema, where: str) -> Scheme:
    try:
        return Scheme(_weights(part.weights), _inputs(part.activations), part.rounding, part.sequential)
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", why=error.why, cure=error.cure) from error


def _weights(part: WeightsSchema) -> WeightScheme:
    return WeightScheme(part.dtype, part.granularity, part.scale_rule, part.scale_dtype, part.group)


def _inputs(part: ActivationsSchema | None) -> InputScheme | None:
    return InputScheme(part.dtype, part.granularity, part.scale == "dynamic") if part else None
