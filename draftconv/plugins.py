"""What other packages bring, by entry point: found without an edit of draftconv, and held to be what it says.

An entry point names one object or several: `toy = "toy_trainer.layout:LAYOUTS"` in the group `draftconv.layouts`.
Nothing of a package is imported before its group is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

from draftconv.errors import BadPlugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group = Literal["draftconv.engines", "draftconv.layouts", "draftconv.formats"]
T = TypeVar("T")


def names(group: Group) -> tuple[str, ...]:
    """What entry points of a group are called, without importing a package."""
    return tuple(entry.name for entry in _entries(group))


def outside(
    group: Group, kind: type[T], shipped: Mapping[str, T], called: Callable[[T], Iterable[str]]
) -> tuple[T, ...]:
    """What installed packages bring to a group.

    Args:
        shipped: draftconv's, by every name that is taken. `called`: the names that a new one would take.

    Raises:
        BadPlugin: it cannot be imported, is something else, or has a name that is taken; names the package.
    """
    owners, plugins = dict.fromkeys(shipped, "draftconv"), list[T]()
    for entry in _entries(group):
        package = entry.dist.name if entry.dist else entry.module
        items = _load(entry, package, kind)
        if group == "draftconv.formats" and [name for item in items for name in called(item)] != [entry.name]:
            raise _bad(package, entry, f"brings something else than {entry.name}, as its entry point is called")
        for item in items:
            for name in called(item):
                if name in owners:
                    raise _bad(package, entry, f"brings {name}, and {owners[name]} has one of that name")
                owners[name] = package
            plugins.append(item)
    return tuple(plugins)


def _entries(group: Group) -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))


def _load(entry: EntryPoint, package: str, kind: type[T]) -> tuple[T, ...]:
    try:
        loaded = entry.load()
    except Exception as error:
        fault = f"cannot be imported: {type(error).__name__}: {error}"
        raise _bad(package, entry, fault) from error
    items = (loaded,) if isinstance(loaded, kind) else loaded
    if not isinstance(items, tuple | list) or not all(isinstance(item, kind) for item in items):
        raise _bad(package, entry, f"is no {kind.__name__} and no tuple of them")
    return tuple(items)


def _bad(package: str, entry: EntryPoint, fault: str) -> BadPlugin:
    return BadPlugin(
        f"package {package}: {entry.value} {fault}",
        why=f"it is installed and says that it belongs to {entry.group}",
        cure=f"mend or uninstall {package}",
    )
