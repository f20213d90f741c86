"""scripts/bench quantize: every recipe is held to its target, and one that is missed shows."""

from __future__ import annotations

import argparse
from pathlib import Path

import bench_quantize
import pytest
from measuring import BenchError, Run, Section

from tests.programs import shebang

# Stands in for draftconv: copies the weights, and can be told to misbehave.
STAND_IN = """{shebang}
import shutil, sys, time
from pathlib import Path
recipe = sys.argv[sys.argv.index("--recipe") + 1]
{misbehaviour}
Path(sys.argv[3]).mkdir()
shutil.copy(Path(sys.argv[2], "model.safetensors"), sys.argv[3])
"""


# Stands in for the Python that has the packages: holds memory, writes nothing.
PEER = """{shebang}
held = b"x" * ({megabytes} << 20)
"""


@pytest.fixture(autouse=True)
def no_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages, whether or not this checkout has them."""
    monkeypatch.setattr(bench_quantize, "PEER_PYTHON", tmp_path / "oracles/bin/python")


def peers(tmp_path: Path, *, megabytes: int = 0) -> None:
    """Put packages there that take so much memory."""
    python = tmp_path / "oracles/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PEER.format(shebang=shebang(), megabytes=megabytes))
    python.chmod(0o755)


def measured(tmp_path: Path, misbehaviour: str = "") -> Section:
    program = tmp_path / "draftconv"
    program.write_text(STAND_IN.format(shebang=shebang(), misbehaviour=misbehaviour))
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


def test_without_the_packages_nothing_is_claimed_of_them(tmp_path: Path) -> None:
    rows = {row.what: row for row in measured(tmp_path).rows}
    assert rows["amd-quark and ModelOpt on the same weights"].measured.startswith("not measured")
    assert not any(title in what for title in bench_quantize.PEERS.values() for what in rows)


@pytest.mark.parametrize(("seconds", "peak_bytes", "met"), [(1e-3, 10**6, True), (1e6, 10**12, False)])
def test_packages_are_compared_with_the_recipe_that_rounds_as_quark_does(
    tmp_path: Path, seconds: float, peak_bytes: int, met: bool
) -> None:
    peers(tmp_path, megabytes=20)
    (tmp_path / "model.safetensors").touch()
    rows = bench_quantize.peer_rows([Run(seconds, peak_bytes)], tmp_path, tmp_path)
    found = {row.what: row.met for row in rows}
    for title in bench_quantize.PEERS.values():
        assert found[f"time of {title} : quark-w4a8"] is met
        assert found[f"peak memory of {title} : quark-w4a8"] is met


@pytest.mark.parametrize(("value", "met"), [(2.9, False), (3.0, True), (3.1, True)])
def test_a_target_is_a_least_value(value: float, met: bool) -> None:
    assert bench_quantize.at_least("time", value, 3).met is met
