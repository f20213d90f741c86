"""Typed access to a config.json that nobody has checked.

A `null` reads as absent (engines disagree about it, so the problem list reports it);
a value of the wrong JSON type is an error that names the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.errors import BadCheckpoint

T = TypeVar("T")

_WORDS: Mapping[type, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True, slots=True)
class Config:
    """One JSON object of a checkpoint; `where` prefixes keys in messages.

    Every method that returns a value raises BadCheckpoint, naming the key, when it has another JSON type.
    """

    data: Mapping[str, object]
    where: str = "config.json"

    def has(self, key: str) -> bool:
        """True when the key is present, even as null."""
        return key in self.data

    def raw(self, key: str) -> object:
        """Return the value as it stands, or None when absent."""
        return self.data.get(key)

    def integer(self, key: str) -> int | None:
        """Return an integer (integral floats allowed), or None when absent or null.

        Raises:
            BadCheckpoint: the value is neither integral nor null.
        """
        value = self.data.get(key)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return self._typed(key, value, int)

    def size(self, key: str, limit: limits.Limit = limits.SIZE) -> int | None:
        """Return a positive integer such as a width or a count; zero and below are errors.

        Args:
            limit: the largest that it may be.
        """
        value = self.integer(key)
        if value is not None:
            if value <= 0:
                raise BadCheckpoint(f"{self.where}: {key} is {show(value)}, not a size", cure="correct the key")
            limit.check(value, f"{self.where}: {key} is {show(value)}")
        return value

    def required(self, key: str, limit: limits.Limit = limits.SIZE) -> int:
        """Return a size that must be there.

        Raises:
            BadCheckpoint: it is absent, null or no size.
        """
        value = self.size(key, limit)
        if value is None:
            raise BadCheckpoint(
                f"{self.where} has no {key}",
                why="no tensor shape can stand in for it",
                cure=f"add {key} as the model was trained",
            )
        return value

    def number(self, key: str) -> float | None:
        """Return a finite number, or None when absent or null."""
        value = self.data.get(key)
        if type(value) is int and abs(value) < 1 << 63:
            value = float(value)
        number = self._typed(key, value, float)
        if number is not None and not math.isfinite(number):
            raise BadCheckpoint(f"{self.where}: {key} is {number}, not a number", cure="correct the key")
        return number

    def flag(self, key: str) -> bool | None:
        """Return true or false, or None when absent or null."""
        return self._typed(key, self.data.get(key), bool)

    def text(self, key: str) -> str | None:
        """Return a string, or None when absent or null."""
        return self._typed(key, self.data.get(key), str)

    def section(self, key: str) -> Config:
        """Return a nested object; an empty one when absent or null."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, dict):
            raise BadCheckpoint(
                f"{self.where}: {key} is {_kind(value)}, not an object", cure="correct or remove the key"
            )
        if value:
            limits.NAMES.check(len(value), f"{self.where}: {key} has {len(value)} keys")
        return Config(cast(Mapping[str, object], value or {}), f"{self.where}: {key}")

    def integers(self, key: str, limit: limits.Limit = limits.NUMBERS) -> tuple[int, ...] | None:
        """Return a list of integers (layer ids), or None when absent or null.

        Args:
            limit: the most that it may hold.
        """
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(item) is not int or abs(item) >> 31 for item in value):
            raise BadCheckpoint(f"{self.where}: {key} is not a list of integers", cure="correct the key")
        limit.check(len(value), f"{self.where}: {key} lists {len(value)} numbers")
        return tuple(value)

    def numbers(self, key: str, limit: limits.Limit = limits.NUMBERS) -> tuple[float, ...] | None:
        """Return a list of finite numbers (log-probabilities), or None when absent or null.

        Args:
            limit: the most that it may hold.
        """
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(map(_is_finite, value)):
            raise BadCheckpoint(f"{self.where}: {key} is not a list of numbers", cure="correct the key")
        limit.check(len(value), f"{self.where}: {key} lists {len(value)} numbers")
        return tuple(float(item) for item in value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty when absent or null."""
        value = self.data.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or any(type(item) is not str for item in value):
            raise BadCheckpoint(f"{self.where}: {key} is not a list of names", cure="correct the key")
        limits.NAMES.check(len(value), f"{self.where}: {key} lists {len(value)} names")
        return tuple(value)

    def _typed(self, key: str, value: object, kind: type[T]) -> T | None:
        if value is None:
            return None
        if type(value) is not kind:
            raise BadCheckpoint(f"{self.where}: {key} is {_kind(value)}, not {_WORDS[kind]}", cure="correct the key")
        return value


def _is_finite(value: object) -> bool:
    return (type(value) is int and abs(value) < 1 << 63) or (type(value) is float and math.isfinite(value))


def _kind(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return f"the number {show(value)}"
        case str():
            return "text"
        case list():
            return "a list"
        case None:
            return "null"
        case _:
            return "an object"
