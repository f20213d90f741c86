"""The command line as a person runs it: in this process where that is enough, as a program where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import draftconv
from draftconv.cli import cli
from tests import tiny
from tests.counted import counts as counts
from tests.traces.recorded import recorded as recorded

Run = Callable[..., Result]
Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("inspect", path)`: one command in an empty working directory, stdout and stderr apart."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda _: None)

    def invoke(*words: object) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words], prog_name="draftconv")

    return invoke


def environment() -> dict[str, str]:
    package = str(Path(draftconv.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": package, "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """`program("inspect", path)`: a process of its own."""

    def start(*words: object) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "draftconv", *map(str, words)]
        return subprocess.run(
            argv, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=60, check=False
        )

    return start


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter")
