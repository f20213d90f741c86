"""The engines by name: the packages here that define `ENGINE`, then those that other packages bring.

They are found when first asked for, so that tables and functions of this room may look engines up without importing
one, and an entry point (`draftconv.engines`) is nobody's business before that.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.plugins import outside

if TYPE_CHECKING:
    from draftconv.engines.engine import Engine


class Engines(Mapping[str, "Engine"]):
    """Engines in the order in which they are listed; one that is `only_named` is found by its name and listed nowhere.

    Raises:
        BadPlugin: on the first use, when one of another package cannot be used.
    """

    @cached_property
    def by_name(self) -> dict[str, Engine]:
        """Every engine there is, in order."""
        from draftconv.engines.engine import Engine

        packages = (info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]) if info.ispkg)
        own = [importlib.import_module(f"draftconv.engines.{name}").ENGINE for name in packages]
        own.sort(key=lambda engine: engine.order)
        engines = {engine.name: engine for engine in own}
        brought = outside("draftconv.engines", Engine, engines, lambda engine: (engine.name,))
        return engines | {engine.name: engine for engine in sorted(brought, key=lambda engine: engine.order)}

    def __getitem__(self, name: str) -> Engine:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, engine in self.by_name.items() if not engine.only_named)

    def __len__(self) -> int:
        return sum(1 for _ in self)


ENGINES = Engines()

DEFAULT = "vllm"
"""The engine that is meant where none is named and one is needed: whose rules a replay follows."""
