"""The house rules that a machine can check: which room may import which, and what starts fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftconv

ROOT = Path(draftconv.__file__).parent

MAY_IMPORT = {
    "errors": set[str](),
    "checkpoint": {"errors"},
    "drafter": {"errors", "checkpoint"},
    "layouts": {"errors", "checkpoint", "drafter"},
    "engines": {"errors", "checkpoint", "drafter"},
    "reference": {"errors", "checkpoint", "drafter"},
    "api": {"errors", "checkpoint", "drafter", "layouts", "engines"},
    "cli": {"errors", "checkpoint", "drafter", "layouts", "engines", "api"},
}
LATE = ("numpy", "huggingface_hub", "jinja2", "rich", "yaml")
"""Imported inside functions only, so that --help and inspect start at once."""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).parts[0].removesuffix(".py"), path


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module)
    return found


@pytest.mark.parametrize(("room", "path"), [pytest.param(r, p, id=str(p.relative_to(ROOT))) for r, p in modules()])
def test_rooms_import_downwards(room: str, path: Path) -> None:
    if room not in MAY_IMPORT:
        assert room in ("__init__", "__main__")
        return
    rooms = {name.split(".")[1] for name in imported(path) if name.startswith("draftconv.")}
    assert rooms <= MAY_IMPORT[room] | {room}
    if room != "reference":
        assert not any(name.split(".")[0] == "torch" for name in imported(path))


@pytest.mark.parametrize("code", ["import draftconv.cli", "import draftconv.api.inspect, draftconv.api.convert"])
def test_nothing_heavy_is_imported_to_start(code: str) -> None:
    listing = f"import sys; {code}; print(*sorted(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert not {*LATE, "torch"} & set(done.stdout.split())


def test_a_late_import_would_be_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, numpy; print('numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
