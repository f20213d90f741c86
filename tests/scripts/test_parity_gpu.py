"""scripts/parity-gpu and its workflow: what is run, in which order, and which exit code comes of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from draftconv.live.profiles import find_profile, profile_names
from tests.programs import shebang

ROOT = Path(__file__).parents[2]
SUITES = ("mt-bench", "gsm8k", "humaneval")
DRAFTCONV = f"""{shebang("-S")}
import json, os, pathlib, sys
words = sys.argv[1:]
with open(os.environ["ASKED"], "a") as asked:
    print(json.dumps(words), file=asked)
if words[0] == "recipes":
    print(json.dumps({{"suites": [{{"prompts": name}} for name in {SUITES}]}}))
elif "--dry-run" in words:
    print("# 1. a command")
else:
    sys.exit(json.loads(os.environ.get("CODES", "{{}}")).get(words[words.index("--prompts") + 1], 0))
"""


class Machine:
    """A PATH with a draftconv that records what it is asked."""

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, path / "asked"
        program = path / "bin" / "draftconv"
        program.parent.mkdir()
        program.write_text(DRAFTCONV)
        program.chmod(0o755)

    def run(self, *words: str, **codes: int) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        named = {name.replace("_", "-"): code for name, code in codes.items()}
        tools = Path(shutil.which("bash") or "").parent
        return subprocess.run(
            [ROOT / "scripts" / "parity-gpu", *words],
            cwd=self.path,
            env={
                "PATH": f"{self.path / 'bin'}:{Path(sys.executable).parent}:{tools}:/usr/bin:/bin",
                "ASKED": str(self.log),
                "CODES": json.dumps(named),
            },
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def runs(self) -> list[list[str]]:
        return [words for words in self.asked() if words[0] == "parity" and "--dry-run" not in words]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_every_suite_in_its_order(machine: Machine) -> None:
    done = machine.run("b200-vllm", "ref", "cand", "out dir", "--", "--engine-python", "/opt/my python")
    assert done.returncode == 0, done.stderr
    runs = machine.runs()
    assert [words[words.index("--prompts") + 1] for words in runs] == list(SUITES)
    for words in runs:
        assert words[:6] == ["parity", "ref", "cand", "--profile", "b200-vllm", "--launch"]
        assert words[words.index("--engine-python") + 1] == "/opt/my python"
        assert "--also-speed" not in words
    out = machine.path / "out dir"
    assert {path.name for path in out.iterdir()} == {*SUITES, "verdicts.txt"}
    assert (out / "gsm8k" / "commands.txt").read_text() == "# 1. a command\n"
    assert (out / "verdicts.txt").read_text() == "".join(f"{name}: exit code 0\n" for name in SUITES)


@pytest.mark.parametrize(
    ("codes", "code", "suites"),
    [
        ({"gsm8k": 3}, 3, 3),
        ({"gsm8k": 3, "humaneval": 1}, 1, 3),
        ({"mt_bench": 1, "gsm8k": 4}, 4, 3),
        ({"mt_bench": 2}, 2, 1),
        ({"gsm8k": 130}, 130, 2),
    ],
)
def test_the_worst_exit_code(machine: Machine, codes: dict[str, int], code: int, suites: int) -> None:
    assert machine.run("b200-vllm", "ref", "cand", **codes).returncode == code
    assert len(machine.runs()) == suites


def test_a_dry_run_runs_nothing_and_leaves_nothing(machine: Machine) -> None:
    done = machine.run("--dry-run", "--speed", "b200-vllm", "ref", "cand")
    assert (done.returncode, machine.runs(), (machine.path / "out").exists()) == (0, [], False)
    assert done.stdout.count("# 1. a command") == len(SUITES)
    first, *rest = [words for words in machine.asked() if words[0] == "parity"]
    assert first[first.index("--accuracy") + 1] == "gsm8k"
    assert all("--also-speed" not in words for words in rest)


@pytest.mark.parametrize("words", [(), ("b200-vllm", "ref"), ("--fast", "b200-vllm", "ref", "cand")])
def test_usage(machine: Machine, words: tuple[str, ...]) -> None:
    done = machine.run(*words)
    assert (done.returncode, machine.asked()) == (2, [])
    assert "scripts/parity-gpu [--dry-run]" in done.stderr
    assert "set -euo" not in done.stderr


def test_the_workflow_offers_profiles_that_exist() -> None:
    text = (ROOT / ".github/workflows/parity-gpu.yml").read_text()
    inputs = yaml.safe_load(text)[True]["workflow_dispatch"]["inputs"]
    offered = inputs["profile"]["options"]
    assert set(offered) <= set(profile_names())
    assert {name.split("-")[0] for name in offered} == {"mi325x", "b200"}
    for name in offered:
        assert find_profile(name).engine.endswith(f":{name.split('-')[0]}")
    run = next(step["run"] for step in yaml.safe_load(text)["jobs"]["parity"]["steps"] if step.get("name") == "Parity")
    assert "${{" not in run  # what comes from outside reaches the shell through variables
    assert run.startswith("scripts/parity-gpu")
