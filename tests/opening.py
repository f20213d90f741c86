"""Opening what tests have written: one line to a drafter, one to its problems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.boundaries import Convention
from draftconv.drafter.checks import Findings, check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.problems import Level
from draftconv.drafter.targets import Target
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter

SHARED = Path(os.environ.get("DRAFTCONV_SHARED", Path(__file__).parents[1].parent / "shared"))


def read(
    path: Path, layout: str | None = None, *, aux: Convention | None = None, target: Target | None = None
) -> Drafter:
    return read_drafter(open_checkpoint(path), ReadOptions(layout, aux, target))


def findings(path: Path, level: Level = "deep", *, target: Target | None = None, layout: str | None = None) -> Findings:
    return check_drafter(read(path, layout, target=target), target, level=level)


def codes(path: Path, level: Level = "deep", *, target: Target | None = None, layout: str | None = None) -> set[str]:
    return {problem.code for problem in findings(path, level, target=target, layout=layout).problems}


def shared(*parts: str) -> Path:
    """A file of the shared reference data, or a skipped test where a checkout has none."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip("the shared reference data is not beside this checkout (nor at DRAFTCONV_SHARED)")
    return path
