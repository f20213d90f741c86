"""YAML that people write: read strictly, and what is said of a file that has another shape.

pydantic says what a key should hold; that a key is misspelled, or there twice, it does not.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.errors import UsageError, did_you_mean, warn_former


class YamlMapping(BaseModel):
    """A mapping in such a file: no key that it does not know, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    former: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What keys were called → what they are called now."""

    @classmethod
    def keys(cls) -> Mapping[str, object]:
        """Its keys as they are written, with the types of their values."""
        return {field.alias or name: field.annotation for name, field in cls.model_fields.items()}


P = TypeVar("P", bound=YamlMapping)


def read_yaml(model: type[P], text: str, where: str, *, noun: str, why: str, example: str) -> P:
    """A file as its model.

    Args:
        where: the file, for messages. `noun`: what it should be (`recipe`).
        why: a misread key matters. `example`: a file that is one.

    Raises:
        UsageError: it is no YAML, or of another shape; the message names every key that is wrong.
    """
    try:
        data = parse_yaml(text, where)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a date that is none, a number of 5000 digits
        raise UsageError(f"{where} is not YAML: {_where(error)}", cure=f"{example} is an example") from error
    if not isinstance(data, dict):
        raise UsageError(f"{where} is no mapping of keys to values", cure=_keys(model))
    data = _current_keys(model, data, where)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A misspelled key is also a missing one: the spelling is told first.
        faults = sorted(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden")
        messages = [_describe_fault(model, noun, details) for details in faults]
        cure = messages[0][1] or f"{example} is an example"
        raise UsageError(f"{where}: {'; '.join(what for what, _ in messages)}", why=why, cure=cure) from error


def parse_yaml(text: str, where: str) -> object:
    """What a YAML text stands for, every key once, within the limits.

    Raises:
        UsageError: it is too large, nested too deeply, repeats a key, or its aliases stand for too much.
        yaml.YAMLError, ValueError: it is no YAML, or a value is none of its type.
    """
    found = len(text.encode("utf-8", "surrogatepass"))
    limits.YAML.check(found, f"{where} has {found} bytes", error=UsageError)
    _refuse_deep(text, where)
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_repeated_keys(root, where)
        _refuse_large(root, where)
        return loader.construct_document(root)
    except (AttributeError, LookupError, TypeError) as error:
        # `!!timestamp x`, `!!bool x` and `!!float ""`: PyYAML 6.0.3 (constructor.py) takes a tag at its word
        raise ValueError("a value is none of the type that its tag says") from error
    finally:
        loader.dispose()


def _refuse_deep(text: str, where: str) -> None:
    """Raises UsageError for what is nested beyond the limit, which PyYAML would meet recursively."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
            most = limits.YAML_LEVELS.value
            limits.YAML_LEVELS.check(depth, f"{where} is nested more than {most} deep", error=UsageError)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1


def _refuse_large(root: yaml.Node, where: str) -> None:
    """Raises UsageError for aliases and merge keys that would make much of little; an alias of what it is in is one."""
    sizes: dict[int, float] = {}

    def size(node: yaml.Node) -> float:
        if id(node) not in sizes:
            sizes[id(node)] = math.inf  # what an alias inside it finds
            match node:
                case yaml.MappingNode():
                    sizes[id(node)] = 1 + sum(size(key) + size(value) for key, value in node.value)
                case yaml.SequenceNode():
                    sizes[id(node)] = 1 + sum(map(size, node.value))
                case _:
                    sizes[id(node)] = 1
        return sizes[id(node)]

    most = limits.YAML_NODES.value
    limits.YAML_NODES.check(size(root), f"{where} stands for more than {most} values", error=UsageError)


def _current_keys(part: type[YamlMapping], data: Mapping[str, object], where: str) -> dict[str, object]:
    """The mapping under the keys of today; raises UsageError for a key that is there under both names."""
    renamed: dict[str, object] = {}
    for key, value in data.items():
        today = part.former.get(key, key)
        if today != key:
            if today in data:
                raise UsageError(
                    f"{where}: {key} and {today} are the same key",
                    why="only one of the two can be meant",
                    cure=f"keep {today}",
                )
            warn_former(f"{where}: {key}", today)
        renamed[today] = value
    return renamed


def _refuse_repeated_keys(root: yaml.Node, where: str) -> None:
    """Raises UsageError for a key that is in one mapping twice: PyYAML would take the later without a word."""
    nodes, seen = [root], set()
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


def _describe_fault(model: type[YamlMapping], noun: str, details: ErrorDetails) -> tuple[str, str]:
    """What is wrong with one key, and what to write instead where that is a guess."""
    path = [str(step) for step in details["loc"] if step != "[key]"]
    key, fault = ".".join(path), f"{details['msg'][:1].lower()}{details['msg'][1:]}"
    match details["type"]:
        case "extra_forbidden" | "invalid_key":
            part = _part(model, path[:-1])
            return f"{key} is no key of a {noun}", did_you_mean(path[-1], part.keys(), _keys(part))
        case "model_type":
            return f"{key}: {_short(details['input'])} is no mapping of keys to values", _keys(_part(model, path))
        case "missing":
            return f"{key}: {fault}", ""
        case _:
            return f"{key}: {fault}, not {_short(details['input'])}", ""


def _short(value: object) -> str:
    """A value in few words: aliases can make one that has no end on paper."""
    shortener = reprlib.Repr()
    shortener.maxlevel, shortener.maxstring = 1, limits.SHOWN.value
    return shortener.repr(value)


def _part(model: type[YamlMapping], path: Sequence[str]) -> type[YamlMapping]:
    """The model of what a path leads to."""
    for step in path:
        model = next(_models(model.keys().get(step)), model)
    return model


def _models(annotation: object) -> Iterator[type[YamlMapping]]:
    if isinstance(annotation, type) and issubclass(annotation, YamlMapping):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _keys(part: type[YamlMapping]) -> str:
    return f"keys: {', '.join(part.keys())}"


def _where(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return "it cannot be parsed"
