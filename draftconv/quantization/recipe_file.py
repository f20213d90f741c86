"""The shape of a recipe file, and what is said of one that has another shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from draftconv.drafter.yaml_file import Part, read_yaml
from draftconv.errors import UsageError, did_you_mean
from draftconv.quantization.exclusions import ROLES, is_pattern
from draftconv.quantization.recipes import Recipe, format_names
from draftconv.quantization.scheme import (
    GridName,
    InputGrid,
    InputPer,
    InputScheme,
    Per,
    RuleName,
    ScaleDtype,
    Scheme,
    WeightScheme,
)

Text = Annotated[str, Field(min_length=1)]
if TYPE_CHECKING:
    Known = str
else:
    Known = Literal[format_names()]


class Weights(Part):
    """`weights:` of a recipe."""

    grid: GridName
    per: Per
    group: int | None = None
    scale_rule: RuleName
    scale_dtype: ScaleDtype


class Activations(Part):
    """`activations:` of a recipe; left out, they stay in 16 bits."""

    grid: InputGrid
    per: InputPer
    scale: Literal["dynamic", "static"]


class File(Part):
    """A whole recipe."""

    about: Text
    weights: Weights
    activations: Activations | None = None
    format: Known | None = None
    exclude: list[Text]


def parse(text: str, name: str, where: str) -> Recipe:
    """Read a recipe.

    Args:
        name: what the recipe is called from now on.
        where: the file, for messages.

    Raises:
        UsageError: it is no YAML or no recipe; the message names the key.
    """
    file = read_yaml(
        File,
        text,
        where,
        noun="recipe",
        why="a key that is misread would quantize something else than was meant",
        example="recipes/w4a16.yaml",
    )
    try:
        scheme = Scheme(_weights(file.weights), _inputs(file.activations))
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", why=error.why, cure=error.cure) from error
    for entry in file.exclude:
        if entry not in ROLES and not is_pattern(entry):
            raise UsageError(
                f"{where}: exclude: {entry} is neither a role nor the pattern of a tensor name",
                why=f"roles: {', '.join(ROLES)}; a pattern holds a . or a *, as in layers.0.mlp.*",
                cure=did_you_mean(entry, ROLES),
            )
    return Recipe(name, file.about, scheme, tuple(file.exclude), file.format)


def _weights(part: Weights) -> WeightScheme:
    return WeightScheme(part.grid, part.per, part.scale_rule, part.scale_dtype, part.group)


def _inputs(part: Activations | None) -> InputScheme | None:
    return InputScheme(part.grid, part.per, part.scale == "dynamic") if part else None
