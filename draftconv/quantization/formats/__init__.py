"""Formats: how quantized weights lie on disk, one module each, read and written.

`formats` finds one instance of each by looking through the package; those of other packages come by the entry
point `draftconv.formats`, which is called as the format is.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from draftconv.errors import UsageError, did_you_mean
from draftconv.plugins import outside
from draftconv.quantization.formats.base import Format


@cache
def formats() -> Mapping[str, Format]:
    """Every format by id, in alphabetical order of modules; those of other packages come last.

    Raises:
        BadPlugin: one of them cannot be used.
    """
    by_id: dict[str, Format] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name != "base":
            members = vars(importlib.import_module(f"{__name__}.{module.name}")).values()
            by_id |= {item.id: item for item in members if isinstance(item, Format)}
    others = outside("draftconv.formats", Format, by_id, lambda item: (item.id,))  # type: ignore[type-abstract]
    by_id |= {item.id: item for item in others}
    return MappingProxyType(by_id)


def find_format(spec: str) -> tuple[Format, str | None]:
    """The format that FORMAT or FORMAT:STYLE names, and the style.

    Raises:
        UsageError: there is none of that name, or it has no such style.
    """
    name, _, style = spec.partition(":")
    known = formats()
    if name not in known:
        raise UsageError(
            f"no format is called {name}",
            why=f"known formats: {', '.join(known)}",
            cure=did_you_mean(name, known, "see docs/recipes.md"),
        )
    fmt = known[name]
    return fmt, fmt.written(style) if style else None
