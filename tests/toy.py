"""A package that draftconv has never heard of: one module with a layout, one with a format, and its entry points.

The two modules are the examples of docs/layouts.md and docs/formats.md, taken from there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
ENTRIES = "[draftconv.layouts]\ntoy = toy_trainer.layout:LAYOUTS\n\n[draftconv.formats]\ntoy = toy_trainer.format:toy\n"


def example(page: str) -> str:
    """The module that a page shows."""
    found = re.search(r"```python\n(\"\"\".*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def install(site: Path, entries: str = ENTRIES, name: str = "toy-trainer", **modules: str) -> Mapping[str, str]:
    """The environment of a process that has the package: its files under `site`, nothing else installed.

    Args:
        modules: their text; left out, those that the pages show.
    """
    package = site / name.replace("-", "_")
    package.mkdir(parents=True)
    modules = modules or {"layout": example("layouts.md"), "format": example("formats.md")}
    for module, text in {"__init__": "", **modules}.items():
        (package / f"{module}.py").write_text(text)
    about = site / f"{package.name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entries)
    return os.environ | {"PYTHONPATH": str(site)}
