"""The data that ships with draftconv."""

from __future__ import annotations

import importlib.resources
import importlib.resources.abc
from pathlib import Path


def recipes() -> importlib.resources.abc.Traversable:
    """The directory `recipes`: inside an installed draftconv, at the top of a checkout."""
    packaged = importlib.resources.files("draftconv") / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "recipes"
