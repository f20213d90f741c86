"""Where the files of `recipes/` are: beside the code of an installed draftconv, at the top of a checkout."""

from __future__ import annotations

import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path


def recipes() -> Traversable:
    """The directory of recipes, suites and known targets."""
    packaged = importlib.resources.files("draftconv") / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "recipes"
