"""scripts/bench small: what GPTQ told is compared with what it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import bench_small
import pytest
from measuring import SCRIPTS, BenchError, Row, Section

from tests.programs import shebang

# Stands in for draftconv: copies the weights, tells what it is told to, and can be told to misbehave.
STAND_IN = """{shebang}
import shutil, sys
from pathlib import Path
if "--dry-run" in sys.argv:
    print({told!r})
    sys.exit()
{misbehaviour}
Path(sys.argv[3]).mkdir()
shutil.copy(Path(sys.argv[2], "model.safetensors"), sys.argv[3])
"""
TOLD = "GPTQ will take about 3 minutes and 0.50 GB of memory, by the rate of this machine measured just now"
# A child process reports at least the peak memory of whoever started it, and a process full of tests is large.
MEASURE = """
import argparse, dataclasses, json, sys
from pathlib import Path
import bench_small, measuring
options = argparse.Namespace(quick=True, dir=Path(sys.argv[1]), keep=False, runs=1)
try:
    section = bench_small.measure("kimi-k2.6-eagle3-mla", options, Path(sys.argv[2]))
except measuring.BenchError as error:
    sys.exit(str(error))
print(json.dumps(dataclasses.asdict(section)))
"""
PEAK, AS_TOLD = "peak memory", "peak memory : what it told"


def measured(tmp_path: Path, misbehaviour: str = "", told: str = TOLD) -> Section:
    program = tmp_path / "draftconv"
    program.write_text(STAND_IN.format(shebang=shebang(), misbehaviour=misbehaviour, told=told))
    program.chmod(0o755)
    argv = [sys.executable, "-c", MEASURE, str(tmp_path / "work"), str(program)]
    environment = {**os.environ, "DRAFTCONV_ENGINE_PYTHON": str(tmp_path / "none")}
    done = subprocess.run(argv, cwd=SCRIPTS, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(done.stderr)
    section = json.loads(done.stdout)
    return Section(section["title"], section["about"], tuple(Row(**row) for row in section["rows"]))


def by_end(section: Section) -> dict[str, bool | None]:
    return {row.what.split("`: ")[-1]: row.met for row in section.rows}


def test_pruning_writing_and_gptq_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    section = measured(tmp_path)
    whats = " ".join(row.what for row in section.rows)
    assert "`draftconv prune --vocab 32`, 20,000 tokens counted" in whats
    assert "`draftconv quantize --recipe int8-all` of that" in whats
    assert any("told 3 minutes" in row.measured for row in section.rows)
    assert by_end(section)[PEAK] is True
    assert by_end(section)[AS_TOLD] is True
    assert section.title == "A small MLA drafter"
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "says", "met"),
    [
        ('{"version": "0.32.0", "class": "Eagle3", "methods": {"Packed": 4}}', "0.32.0, Eagle3: 4 x Packed", True),
        ('{"version": "0.32.0", "refused": "KeyError: weight"}', "0.32.0: KeyError: weight", False),
    ],
)
def test_what_vllm_says_of_an_output_stands_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, says: str, met: bool
) -> None:
    engine = tmp_path / "engine"
    engine.write_text(f"{shebang()}\nprint({answer!r})\n")
    engine.chmod(0o755)
    monkeypatch.setenv("DRAFTCONV_ENGINE_PYTHON", str(engine))
    assert bench_small.opened("GPTQ", tmp_path, "target") == Row("GPTQ: opens in vLLM", says, "yes", met)


def test_without_vllm_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTCONV_ENGINE_PYTHON", str(tmp_path / "none"))
    assert bench_small.opened("GPTQ", tmp_path, "target").met is None


def test_more_memory_than_was_told_shows(tmp_path: Path) -> None:
    section = measured(tmp_path, "held = b'x' * (700 << 20)")
    assert by_end(section)[PEAK] is True
    assert by_end(section)[AS_TOLD] is False
    assert not section.met


def test_a_program_that_tells_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="does not tell"):
        measured(tmp_path, told="GPTQ")
    assert list((tmp_path / "work").iterdir()) == []
