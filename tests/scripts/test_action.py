"""action.yml: its steps run as they stand, as GitHub's runner would start them, with a stand-in for `gh`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from action import MOST, comment, earlier, escaped, marker, workflow_commands

import draftconv
from draftconv.report import read_report
from tests.programs import shebang

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
LLAMA = str(DATA / "targets" / "llama")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: dict[str, Any] = {step["name"]: step for step in ACTION["runs"]["steps"]}
EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")

GH = f"""{shebang()}
import json, os, pathlib, sys
files = [word.removeprefix("body=@") for word in sys.argv if word.startswith("body=@")]
body = pathlib.Path(files[0]).read_text() if files else None
with open(os.environ["SENT"], "a") as log:
    log.write(json.dumps([sys.argv[1:], body]) + "\\n")
if body is None:
    print(os.environ["COMMENTS"], end="")
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("trace") / "trace"
    draftconv.trace(
        LLAMA,
        DATA / "prompts.json",
        place,
        drafters=DATA / "drafters" / "llama-eagle3.1",
        max_tokens=8,
        ignore_eos=True,
        dtype="float32",
    )
    return place


@dataclass(frozen=True)
class Runner:
    """A job: where its steps run, and what they left."""

    place: Path
    trace: Path

    def inputs(self, **given: str) -> dict[str, str]:
        defaults = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()}
        return defaults | {"trace": str(self.trace), "reference": "ref", "report": "report"} | given

    def step(
        self, name: str, inputs: Mapping[str, str], comments: str = "[]", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one step as the runner does: its script in a file, its expressions filled in beforehand."""
        values = {f"inputs.{key}": value for key, value in inputs.items()} | {
            "steps.parity.outputs.exit-code": self.outputs().get("exit-code", ""),
            "github.event.pull_request.number": "7",
        }
        step = STEPS[name]
        assert step["shell"] == "bash"
        script = self.place / "script.sh"
        script.write_text(step["run"])
        environment = {key: EXPRESSION.sub(lambda found: values[found[1]], text) for key, text in step["env"].items()}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.place,
            env=os.environ
            | {
                "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "RUNNER_TEMP": str(self.place),
                "GITHUB_ACTION_PATH": str(ROOT),
                "GITHUB_OUTPUT": str(self.place / "output"),
                "GITHUB_STEP_SUMMARY": str(self.place / "summary"),
                "GITHUB_REPOSITORY": "lab/drafters",
                "SENT": str(self.place / "sent"),
                "COMMENTS": comments,
            }
            | environment
            | more,
            capture_output=True,
            text=True,
            check=False,
        )

    def outputs(self) -> dict[str, str]:
        if not (self.place / "output").exists():
            return {}
        lines = (self.place / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def sent(self) -> list[tuple[list[str], str | None]]:
        return [(argv, body) for argv, body in map(json.loads, (self.place / "sent").read_text().splitlines())]


@pytest.fixture
def runner(tmp_path: Path, trace: Path) -> Runner:
    (tmp_path / "ref").symlink_to(DATA / "drafters" / "llama-eagle3.1")
    (tmp_path / "draftconv").symlink_to(sys.prefix)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(GH)
    (tmp_path / "bin" / "gh").chmod(0o755)
    return Runner(tmp_path, trace)


def test_no_step_reads_what_comes_from_outside_as_shell() -> None:
    for step in STEPS.values():
        assert "${{" not in step.get("run", "")


def test_a_conversion_passes(runner: Runner) -> None:
    draftconv.convert(runner.place / "ref", runner.place / "out", to="vllm", target=DATA / "targets" / "llama")
    inputs = runner.inputs(candidates="\n out\n")
    assert runner.step("Parity", inputs).returncode == 0
    assert runner.outputs() == {"verdict": "pass", "exit-code": "0"}
    told = runner.step("Summary and annotations", inputs)
    assert (runner.place / "summary").read_text() == (runner.place / "report" / "report.md").read_text()
    assert told.stdout == (
        "::notice title=Accept-length parity%3A pass::out drafts exactly as llama-eagle3.1 does: "
        "the counts of all 32 requests are equal.\n"
    )
    assert runner.step("Verdict", inputs).returncode == 0


def test_another_drafter_fails(runner: Runner) -> None:
    (runner.place / "worse").symlink_to(DATA / "drafters" / "llama-eagle3")
    inputs = runner.inputs(candidates="worse")
    runner.step("Parity", inputs)
    told = runner.step("Summary and annotations", inputs)
    verdict = runner.outputs()["verdict"]
    assert verdict in ("fail", "void")
    assert told.stdout.startswith(f"::error title=Accept-length parity%3A {verdict}::")
    assert runner.step("Verdict", inputs).returncode == {"fail": 1, "void": 4}[verdict]


def test_without_a_verdict_there_is_a_word_and_an_error(runner: Runner) -> None:
    inputs = runner.inputs(candidates="nowhere", arguments="--margin 0.01")
    done = runner.step("Parity", inputs)
    assert "nowhere" in done.stderr
    assert runner.outputs() == {"verdict": "error", "exit-code": "2"}
    assert runner.step("Summary and annotations", inputs).stdout.startswith("::error title=")
    assert not (runner.place / "summary").exists()
    assert runner.step("Comment", inputs).returncode == 0
    assert not (runner.place / "sent").exists()
    assert runner.step("Verdict", inputs).returncode == 2


def test_names_are_no_shell_and_no_options(runner: Runner) -> None:
    inputs = runner.inputs(reference="$(touch harm)", candidates="--help `touch harm`; touch harm")
    runner.step("Parity", inputs)
    assert runner.outputs()["verdict"] == "error"
    assert not (runner.place / "harm").exists()


def test_one_comment_is_written_and_then_rewritten(runner: Runner) -> None:
    inputs = runner.inputs(arguments="--fake-quant w4a16 --margin 0.5")
    runner.step("Parity", inputs)
    assert runner.outputs()["verdict"] in ("pass", "inconclusive", "equivalent")
    assert runner.step("Comment", inputs).stderr == ""
    comments = "repos/lab/drafters/issues"
    page = (runner.place / "report" / "report.md").read_text()
    (asked, _), (argv, body) = runner.sent()
    assert asked == ["api", "--paginate", f"{comments}/7/comments"]
    assert argv[:5] == ["api", "--silent", "--method", "POST", f"{comments}/7/comments"]
    assert body == f"{marker('parity')}\n{page}"
    there = json.dumps([{"id": 1, "body": "nice"}]) + json.dumps([{"id": 22, "body": body}])
    assert runner.step("Comment", inputs, comments=there).returncode == 0
    argv, body = runner.sent()[-1]
    assert argv[:5] == ["api", "--silent", "--method", "PATCH", f"{comments}/comments/22"]


def test_a_name_that_forges_a_command_stays_text(runner: Runner) -> None:
    """GitHub takes a line that begins with `::` as a command, wherever the text came from."""
    draftconv.convert(runner.place / "ref", runner.place / "out", to="vllm", target=DATA / "targets" / "llama")
    inputs = runner.inputs(candidates="out")
    runner.step("Parity", inputs)
    report = read_report(runner.place / "report")
    assert len([*workflow_commands(report)]) == 1
    assert escaped("a\r\n::set-output name=x::1 %0A") == "a%0D%0A::set-output name=x::1 %250A"


def test_a_long_report_is_cut_at_a_line() -> None:
    page = "\n".join(f"| row {n} |" for n in range(20_000))
    text = comment(page, "parity")
    assert len(text) < 65_536
    assert re.search(r"\n\| row \d+ \|\n\nThe rest is in the report that this run keeps\.\n$", text)
    assert len(comment("x" * MOST, "parity")) == MOST + len(marker("parity")) + 1


def test_markers_hold_any_name_and_are_told_apart() -> None:
    hostile = "--> <img src=x>"
    assert "-->" not in marker(hostile).removesuffix(" -->")
    pages = json.dumps([{"id": 5, "body": comment("text", hostile)}, {"id": 6, "body": comment("text", "b")}])
    assert earlier(pages, "b") == 6
    assert earlier(pages, hostile) == 5
    assert earlier(pages, "c") is None
    assert earlier("", "b") is None
    assert earlier("[]\n[]\n", "b") is None


@pytest.mark.slow
def test_it_installs_itself(tmp_path: Path) -> None:
    """With the pins of the checks, so that torch is the build that they have."""
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS["Install"]["run"]],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {
            "RUNNER_TEMP": str(tmp_path),
            "GITHUB_ACTION_PATH": str(ROOT),
            "TORCH_INDEX": "",
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    program = tmp_path / "draftconv" / "bin" / "draftconv"
    told = subprocess.run([program, "recipes", "w4a16"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
