"""Layouts: one module per producer or engine spelling, found by being in this package."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil

from draftconv.errors import UsageError
from draftconv.layouts.base import Layout

MARK = "_draftconv_layout"
"""config.json key that names the layout draftconv wrote; engines and trainers ignore it."""


@functools.cache
def layouts() -> dict[str, Layout]:
    """Every layout by id, in the order in which detection asks them."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    found: list[Layout] = [layout for module in modules for layout in getattr(module, "LAYOUTS", ())]
    return {layout.id: layout for layout in sorted(found, key=lambda layout: layout.order)}


def layout(name: str) -> Layout:
    """Find a layout by id.

    Raises:
        UsageError: unknown; names the closest.
    """
    known = layouts() | {found.alias: found for found in layouts().values() if found.alias}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"unknown layout {name}",
        why=f"known: {', '.join(known)}",
        cure=f"did you mean {close[0]}?" if close else "",
    )


def writable() -> dict[str, Layout]:
    """The layouts that `convert --to` accepts, by the name it takes."""
    return {found.alias or name: found for name, found in layouts().items() if found.writer}
