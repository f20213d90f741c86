"""YAML that people write: read strictly, and what is said of a file that has another shape."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from draftconv.errors import UsageError, did_you_mean


class Part(BaseModel):
    """A mapping in such a file: no key that it does not know, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


P = TypeVar("P", bound=Part)


def read_yaml(model: type[P], text: str, where: str, *, noun: str, why: str, example: str) -> P:
    """A file as its model.

    Args:
        where: the file, for messages. `noun`: what it should be (`recipe`). `why`: a misread key matters.
        example: a file that is one.

    Raises:
        UsageError: it is no YAML, or of another shape; the message names every key that is wrong.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where} is not YAML: {_where(error)}", cure=f"{example} is an example") from error
    if not isinstance(data, dict):
        raise UsageError(f"{where} is no mapping of keys to values", cure=_keys(model))
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A misspelled key is also a missing one: the spelling is told first.
        faults = sorted(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden")
        first, *more = (_told(model, noun, details) for details in faults)
        raise UsageError(
            f"{where}: {'; '.join([first[0], *(what for what, _ in more)])}", why=why, cure=first[1]
        ) from error


def _told(model: type[Part], noun: str, details: ErrorDetails) -> tuple[str, str]:
    """What is wrong with one key, and what to write instead."""
    path = details["loc"]
    key = ".".join(map(str, path))
    match details["type"]:
        case "extra_forbidden":
            part = _part(model, path[:-1])
            return f"{key} is no key of a {noun}", did_you_mean(str(path[-1]), part.model_fields, _keys(part))
        case "missing":
            return f"{key} is missing", f"add {key}"
        case "literal_error":
            known = re.findall(r"'([^']+)'", details.get("ctx", {}).get("expected", ""))
            return f"{key}: {details['input']!r} is unknown", did_you_mean(
                str(details["input"]), known, f"{key}: {' or '.join(known)}"
            )
        case _:
            said = details["msg"]
            return f"{key}: {said[:1].lower()}{said[1:]}", ""


def _part(model: type[Part], path: Sequence[int | str]) -> type[Part]:
    """The model of what a path leads to."""
    for step in path:
        if step in model.model_fields:
            model = _model_in(model.model_fields[str(step)].annotation) or model
    return model


def _model_in(annotation: object) -> type[Part] | None:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _keys(part: type[Part]) -> str:
    return f"keys: {', '.join(part.model_fields)}"


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return "it cannot be parsed"
