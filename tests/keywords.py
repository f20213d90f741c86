"""Options that are held as an object, as the keyword arguments of the function that takes them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from draftconv.verification.options import said_again


def evidence(options: Any, **changes: Any) -> dict[str, Any]:
    """What `verify` has to be told of a conversion with these options."""
    return keywords(said_again(options), **changes)


def keywords(options: Any, **changes: Any) -> dict[str, Any]:
    """Every field by its name, some of them changed; keyword arguments stay what they are."""
    if isinstance(options, dict):
        return {**options, **changes}
    changed = replace(options, **changes)
    return {each.name: getattr(changed, each.name) for each in fields(changed)}
