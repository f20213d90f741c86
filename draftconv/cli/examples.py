"""Engines that stand in the examples of `--help`: the first ones of the list."""

from __future__ import annotations

from draftconv.engines import ENGINES

ENGINE, OTHER, THIRD = list(ENGINES)[:3]
