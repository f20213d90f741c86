"""scripts/bench memory: whole processes on random models, and a row that says when more is held than has to be."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import bench_memory
import pytest
from bench_memory import CACHE_ROW, LAYERS, SLACK, STATES_ROW

from tests.programs import shebang


def test_states_that_are_held_would_show() -> None:
    """From 4k to 32k positions they take three times the slack, and three times the growth of the cache."""
    grown = 32768 - 4096
    cache, states = grown * LAYERS * CACHE_ROW / 1e6, grown * STATES_ROW / 1e6
    assert states > 3 * SLACK
    assert states > 2.9 * cache
    sound = bench_memory._row("trace", LAYERS, 32768, 300 + cache + 20, 4096, 300)
    assert sound.met
    assert f"{cache + 20:.0f} MB more than at 4,096" in sound.measured
    assert bench_memory._row("trace", LAYERS, 32768, 300 + cache + states, 4096, 300).met is False
    shortest = bench_memory._row("accept", 1, 4096, 300, 4096, 300)
    assert (shortest.measured, shortest.met) == ("300 MB over its imports", None)


def test_the_models_are_what_the_figures_say() -> None:
    target, drafter = bench_memory._target(), bench_memory._drafter()
    layers = [name for name in target["tensors"] if name.endswith("k_proj.weight")]  # type: ignore[attr-defined]
    assert len(layers) == LAYERS
    kept = drafter["tensors"]["fc.weight"]["shape"]  # type: ignore[index]
    assert 4 * kept[1] == STATES_ROW
    assert 2 * 4 * drafter["tensors"]["midlayer.self_attn.k_proj.weight"]["shape"][0] == CACHE_ROW  # type: ignore[index]
    assert json.dumps(target)


@pytest.mark.slow
def test_the_miniature_has_every_figure(tmp_path: Path) -> None:
    program = tmp_path / "draftconv"
    program.write_text(f"{shebang()}from draftconv.cli import main\nmain()\n")
    program.chmod(0o755)
    options = argparse.Namespace(quick=True, dir=tmp_path / "work")
    section = bench_memory.measure(options, program)
    assert [row.what for row in section.rows] == [
        f"`draftconv {name}`, {positions} positions" for name in ("trace", "accept") for positions in (128, 256)
    ]
    assert section.met
    assert list((tmp_path / "work").iterdir()) == []
