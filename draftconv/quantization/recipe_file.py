"""The shape of a recipe file, and what is said of one that has another shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from draftconv.checkpoint import show
from draftconv.errors import UsageError, did_you_mean
from draftconv.quantization.exclusions import ROLES, is_pattern
from draftconv.quantization.recipes import FormatName, Recipe
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


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Weights(_Part):
    """`weights:` of a recipe."""

    grid: GridName
    per: Per
    group: int | None = None
    scale_rule: RuleName
    scale_dtype: ScaleDtype


class Activations(_Part):
    """`activations:` of a recipe; left out, they stay in 16 bits."""

    grid: InputGrid
    per: InputPer
    scale: Literal["dynamic", "static"]


class File(_Part):
    """A whole recipe."""

    about: Text
    weights: Weights
    activations: Activations | None = None
    format: FormatName | None = None
    exclude: list[Text]


def parse(text: str, name: str, where: str) -> Recipe:
    """Read a recipe.

    Args:
        name: what the recipe is called from now on.
        where: the file, for messages.

    Raises:
        UsageError: it is no YAML or no recipe; the message names the key.
    """
    try:
        _refuse_twice(yaml.compose(text, yaml.SafeLoader), where)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where} is not YAML: {_where(error)}", cure="recipes/w4a16.yaml is an example") from error
    if not isinstance(data, dict):
        raise UsageError(f"{where} is no mapping of keys to values", cure=_keys(File))
    try:
        file = File.model_validate(data)
    except ValidationError as error:
        # A misspelled key is also a missing one: the spelling is told first.
        faults = sorted(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden")
        first, *more = (_told(details) for details in faults)
        raise UsageError(
            f"{where}: {'; '.join([first[0], *(what for what, _ in more)])}",
            why="a key that is misread would quantize something else than was meant",
            cure=first[1],
        ) from error
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


def _refuse_twice(root: yaml.Node | None, where: str) -> None:
    """Raises UsageError for a key that is in one mapping twice: PyYAML would take the later without a word."""
    nodes, seen = [root] if root else [], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue  # an alias
        seen.add(id(node))
        match node:
            case yaml.MappingNode():
                lines: dict[str, int] = {}
                for key, _ in node.value:
                    name, line = str(key.value), key.start_mark.line + 1
                    if name in lines:
                        raise UsageError(
                            f"{where}: line {line}: {show(name)} is there twice, first in line {lines[name]}",
                            why="only one of the two can be meant",
                            cure="keep one of them",
                        )
                    lines[name] = line
                nodes += [value for _, value in node.value]
            case yaml.SequenceNode():
                nodes += node.value


def _told(details: ErrorDetails) -> tuple[str, str]:
    """What is wrong with one key, and what to write instead."""
    path = [str(step) for step in details["loc"]]
    key = ".".join(path)
    match details["type"]:
        case "extra_forbidden" | "invalid_key":
            part = _PARTS.get(path[0], File) if len(path) > 1 else File
            return f"{key} is no key of a recipe", did_you_mean(path[-1], part.model_fields, _keys(part))
        case "missing":
            return f"{key} is missing", f"add {key}: {_wanted(path)}"
        case "literal_error":
            known = _known(path)
            return f"{key}: {details['input']!r} is none of {', '.join(known)}", did_you_mean(
                str(details["input"]), known, f"write {key}: {' or '.join(known)}"
            )
        case _:
            return f"{key}: {details['input']!r} is no {_wanted(path)}", ""


def _wanted(path: Sequence[str]) -> str:
    """What a key may hold, in words."""
    key = ".".join(step for step in path if not step.isdigit())
    return WANTED[key] if key in WANTED else " or ".join(_known(path))


WANTED: Mapping[str, str] = {
    "about": "line of text",
    "weights": "mapping with keys grid, per, group, scale_rule, scale_dtype",
    "weights.group": "whole number of inputs, such as 128",
    "activations": "mapping with keys grid, per, scale",
    "exclude": "list of roles and patterns as texts, such as [embed, lm_head, fc, norms]",
}
"""What keys hold that have no list of words to choose from."""


def _known(path: Sequence[str]) -> tuple[str, ...]:
    """The words that a key may hold."""
    part = _PARTS[path[0]] if len(path) > 1 else File
    annotation = part.model_fields[path[-1]].annotation
    choices = [annotation, *get_args(annotation)]
    return next(get_args(choice) for choice in choices if get_origin(choice) is Literal)


_PARTS: Mapping[str, type[_Part]] = {"weights": Weights, "activations": Activations}


def _keys(part: type[_Part]) -> str:
    return f"keys: {', '.join(part.model_fields)}"


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return "it cannot be parsed"
