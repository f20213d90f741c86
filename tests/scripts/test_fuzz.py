"""`scripts/fuzz`: it finds what is planted, saves it, replays it, and makes the same inputs of the same seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from fuzz import PART, table
from fuzzing.breaking import broken_bytes, broken_document, broken_yaml
from fuzzing.case import Case
from fuzzing.loop import Fault, Tally
from fuzzing.mutators import MUTATORS
from fuzzing.seeds import Seeds

ROOT = Path(__file__).resolve().parents[2]

PLANTED = {
    "exception": "raise KeyError('planted')",
    "own error": "raise RuntimeError('planted')",
    "exit code": "raise SystemExit(7)",
    "silence": "raise SystemExit(2)",
    "payload": "import os; os.system('true')",
    "write": "open('/tmp/draftconv-fuzz-planted', 'w')",
    "memory": "found = bytearray(1 << 34)",
    "no end": "import signal, os; os.kill(os.getpid(), signal.SIGXCPU)",
    "abort": "import os; os.abort()",
}
"""What a reader of recipes does wrong, by what it is."""
TOLD = {
    "exception": "a fault of draftconv",
    "own error": "a fault of draftconv",
    "exit code": "exit code 7",
    "silence": "exit code 2 without a word",
    "payload": "os.system",
    "write": "writes /tmp/draftconv-fuzz-planted",
    "memory": "MemoryError",
    "no end": "more than 10 s of the processor",
    "abort": "ended by SIGABRT",
}

DRIVER = """
import sys
import draftconv.quantization.recipes as module
from draftconv.quantization.recipes import find_recipe

def broken(*arguments):
    {fault}
    return find_recipe(*arguments)

import draftconv.api.recipes, fuzz
draftconv.api.recipes.find_recipe = broken
sys.exit(fuzz.main(sys.argv[1:]))
"""


def fuzz(*argv: str, fault: str = "pass", cwd: Path) -> subprocess.CompletedProcess[str]:
    """A run in which every recipe that is shown meets a fault."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DRIVER.format(fault=fault), *argv, "--jobs", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=300)


def test_broken_inputs_are_answered(tmp_path: Path) -> None:
    done = fuzz("--inputs", "24", "--mutator", "recipe", "engine", "prompts", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| recipe | 8 |" in done.stdout
    assert "| all | 24 |" in done.stdout
    assert "no fault" in done.stdout
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["exception", pytest.param("memory", marks=pytest.mark.slow)])
def test_a_planted_fault_is_found_saved_and_replayed(kind: str, tmp_path: Path) -> None:
    recipe = ("--mutator", "recipe")
    done = fuzz("--inputs", "4", *recipe, fault=PLANTED[kind], cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert TOLD[kind] in done.stdout
    assert "1 different faults, kept in fuzz-faults" in done.stdout
    kept = tmp_path / "fuzz-faults"
    assert len(list(kept.iterdir())) == 1  # one fault, however many inputs meet it
    replayed = fuzz(*recipe, "--replay", "fuzz-faults", fault=PLANTED[kind], cwd=tmp_path)
    assert (replayed.returncode, "1 of 1 are still faults" in replayed.stdout) == (1, True)
    mended = fuzz(*recipe, "--replay", "fuzz-faults", cwd=tmp_path)
    assert (mended.returncode, "mended" in mended.stdout) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in PLANTED if kind not in ("exception", "memory")])
def test_every_kind_of_fault_is_found(kind: str, tmp_path: Path) -> None:
    done = fuzz("--inputs", "2", "--mutator", "recipe", fault=PLANTED[kind], cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert TOLD[kind] in done.stdout
    assert not Path("/tmp/draftconv-fuzz-planted").exists()


def test_a_seed_decides_every_input(tmp_path: Path) -> None:
    seeds = Seeds(tmp_path / "seeds")
    seeds.root.mkdir()
    for name in ("recipe", "profile", "prompts"):
        first, again, other = (MUTATORS[name].case(seed, 3, seeds) for seed in (1, 1, 2))
        assert first == again
        assert first.files != other.files


def test_a_case_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    (seed := tmp_path / "seeds" / "one").mkdir(parents=True)
    (seed / "config.json").write_text("{}")
    case = Case("header", 1, 2, {"a/b": b"\0\xff"}, (("inspect", "{in}"),), {"config.json": seed / "config.json"}, True)
    case.save(tmp_path / "kept", ("it fell",))
    assert Case.load(tmp_path / "kept", tmp_path / "seeds") == case
    case.lay(tmp_path / "in")
    assert (tmp_path / "in/a/b").read_bytes() == b"\0\xff"
    assert (tmp_path / "in/config.json").read_text() == "{}"


def test_breaking_changes_something() -> None:
    document = {"a": [1, 2, {"b": "c"}], "d": None}
    text = json.dumps(document).encode()
    changed = {broken_document(Random(seed), document) for seed in range(50)}
    assert len(changed - {text}) > 40
    assert document == {"a": [1, 2, {"b": "c"}], "d": None}
    assert sum(broken_bytes(Random(seed), text) != text for seed in range(50)) > 45
    assert len({broken_yaml(Random(seed), "a: 1\nb: 2\n") for seed in range(50)}) > 30


def test_faults_that_are_one_have_one_signature() -> None:
    case = Case("config", 0, 1, {}, ())
    assert Fault(case, ("inspect {in}: exit code 17",)).signature == Fault(case, ("serve {in}: exit code 9",)).signature
    assert Fault(case, ("inspect {in}: exit code 1",)).signature != Fault(case, ("inspect {in}: writes x",)).signature


def test_the_table_has_its_place() -> None:
    rows = table({"config": Tally(3, 2, 0, 1), "hub": Tally(1, 0, 1, 0)})
    assert rows.splitlines()[2:] == ["| config | 3 | 2 | 0 | 1 |", "| hub | 1 | 0 | 1 | 0 |", "| all | 4 | 2 | 1 | 1 |"]
    assert PART.search((ROOT / "docs/fuzz.md").read_text(encoding="utf-8"))
