"""The engines by name, for tables that a function finds by `EngineSpec`; `draftconv.engines` fills it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftconv.engines.engine import Engine

ENGINES: dict[str, Engine] = {}
