"""scripts/bench quantize: every recipe is held to its target, and one that is missed shows."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import bench_quantize
import pytest
from measuring import BenchError, Section

# Stands in for draftconv: copies the weights, and can be told to misbehave.
STAND_IN = """#!{python}
import shutil, sys, time
from pathlib import Path
recipe = sys.argv[sys.argv.index("--recipe") + 1]
{misbehaviour}
Path(sys.argv[3]).mkdir()
shutil.copy(Path(sys.argv[2], "model.safetensors"), sys.argv[3])
"""


def measured(tmp_path: Path, misbehaviour: str = "") -> Section:
    program = tmp_path / "draftconv"
    program.write_text(STAND_IN.format(python=sys.executable, misbehaviour=misbehaviour))
    program.chmod(0o755)
    options = argparse.Namespace(quick=True, dir=tmp_path / "work", keep=False, runs=1)
    return bench_quantize.measure(options, program)


def test_every_recipe_is_compared_with_the_copy_and_nothing_is_left(tmp_path: Path) -> None:
    whats = [row.what for row in measured(tmp_path).rows]
    for recipe in bench_quantize.RECIPES:
        assert f"{recipe} : durable copy, medians" in whats
        assert f"peak memory of {recipe}" in whats
    assert list((tmp_path / "work").iterdir()) == []


def test_a_slow_recipe_misses_its_target(tmp_path: Path) -> None:
    section = measured(tmp_path, "time.sleep(2) if recipe == 'w4a16' else None")
    assert {row.what: row.met for row in section.rows}["w4a16 : durable copy, medians"] is False
    assert not section.met


def test_a_failing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no such recipe"):
        measured(tmp_path, "sys.exit('no such recipe')")
    assert list((tmp_path / "work").iterdir()) == []
