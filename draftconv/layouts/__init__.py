"""Layouts: one module per producer's spelling, found by being in this package.

What an engine reads is part of that engine (`Engine.layouts`); those of other packages come by the entry point
`draftconv.layouts`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Collection

from draftconv.errors import BadPlugin, UsageError, did_you_mean
from draftconv.layouts.base import Layout
from draftconv.plugins import outside

MARK = "_draftconv_layout"
"""config.json key that names the layout draftconv wrote; engines and trainers ignore it."""


@functools.cache
def layouts() -> dict[str, Layout]:
    """Every layout by id, in the order in which detection asks them.

    Raises:
        BadPlugin: one of another package cannot be used.
    """
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    collected: list[Layout] = [layout for module in modules for layout in getattr(module, "LAYOUTS", ())]
    collected += _engine_layouts(tuple(name for layout in collected for name in _layout_names(layout)))
    collected += outside(
        "draftconv.layouts",
        Layout,
        {name: layout for layout in collected for name in _layout_names(layout)},
        _layout_names,
    )
    return {layout.id: layout for layout in sorted(collected, key=lambda layout: layout.order)}


def _engine_layouts(taken: Collection[str]) -> list[Layout]:
    """What engines read, each by itself and in the one spelling that some of them share.

    The one step upwards in the house: an engine is written on top of this room, and brings its layout with it.

    Raises:
        BadPlugin: a layout of an engine has a name that is taken.
    """
    from draftconv.engines import ENGINES
    from draftconv.layouts.portable import portable_layout

    collected: list[Layout] = []
    names = {*taken, "portable"}
    for engine in ENGINES.values():
        for layout in engine.layouts:
            if clash := names.intersection(_layout_names(layout)):
                raise BadPlugin(
                    f"{engine.title} brings the layout {min(clash)}, and there is one of that name",
                    why="a layout is chosen by its name",
                    cure="mend or uninstall the package that brings this engine",
                )
            names.update(_layout_names(layout))
            collected.append(layout)
    shared = [layout for engine in ENGINES.values() if engine.portable for layout in engine.layouts]
    return [*collected, portable_layout(shared)] if shared else collected


def _layout_names(layout: Layout) -> tuple[str, ...]:
    return (layout.id, layout.alias) if layout.alias else (layout.id,)


def layout(name: str) -> Layout:
    """Find a layout by id, whatever its case.

    Raises:
        UsageError: unknown, and names the closest; or the name of an engine for which nothing is written.
    """
    from draftconv.engines import ENGINES, parse_engine

    known = _layouts_by_name()
    match = known.get(spelled(name))
    if match is None and name.lower() in ENGINES.by_name:
        parse_engine(name)
    if match is None:
        cure = did_you_mean(name.lower(), known)
        raise UsageError(f"unknown layout {name}", why=f"known: {', '.join(known)}", cure=cure)
    return match


def spelled(name: str) -> str:
    """A layout's name as it is spelled, whatever the case in which it was typed."""
    return name if name in _layouts_by_name() else name.lower()


def _layouts_by_name() -> dict[str, Layout]:
    """Every layout by id and by alias."""
    return layouts() | {item.alias: item for item in layouts().values() if item.alias}


def writable() -> dict[str, Layout]:
    """The layouts that `convert --to` accepts, by the name it takes."""
    return {item.alias or name: item for name, item in layouts().items() if item.writer}
