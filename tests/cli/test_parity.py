"""`draftconv parity`: what is said where, exit codes, the report directory, and what an extension takes."""

from __future__ import annotations

import errno
import io
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file

from draftconv.api import parity as api
from draftconv.cli import output, replaying
from draftconv.replay import controls
from draftconv.report import read_report
from tests.cli.conftest import Run, environment
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

LLAMA, MLA = DATA / "drafters/llama-eagle3", DATA / "drafters/mla-eagle3"
FILES = ["junit.xml", "records.jsonl", "report.html", "report.json", "report.md"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LLAMA, tmp_path / "copy"))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    out = Path(shutil.copytree(LLAMA, tmp_path / "broken"))
    tensors = load_file(out / "model.safetensors")
    tensors["midlayer.mlp.down_proj.weight"] *= 2
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


@pytest.fixture
def trace(recorded: Recorded, tmp_path: Path) -> Path:
    """A trace beside the working directory's files, named as a person would."""
    (tmp_path / "trace").symlink_to(recorded())
    return tmp_path / "trace"


def flat(result: Result) -> str:
    return " ".join(result.stdout.split())


# ── exit codes, each by a real run ─────────────────────────────────────────────────


def test_pass(run: Run, trace: Path, copy: Path) -> None:
    done = run("parity", LLAMA, copy, "--trace", trace)
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:2]] == [
        f"{name} is read as torchspec-native (certain" for name in ("llama-eagle3", "copy")
    ]
    assert "copy drafts exactly as llama-eagle3 does: the counts of all 8 requests are equal." in flat(done)
    assert flat(done).count("requests are equal") == 1
    assert "Next:" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert next(row for row in rows if row[:1] == ["copy"] and "is" not in row)[-3:] == ["equal", "counts", "pass"]


def test_fail(run: Run, trace: Path, broken: Path) -> None:
    done = run("parity", LLAMA, broken, "--trace", trace)
    assert done.exit_code == 1
    assert "broken does not draft as llama-eagle3 does: the counts differ in 8 of 8 requests." in flat(done)
    assert "8 of 8 requests have other counts, most of all 0" in flat(done)


def test_bad_input(run: Run, trace: Path, copy: Path) -> None:
    for words, said in (
        (["--trace", trace], "there is no candidate to compare with the reference"),
        ([copy, "--trace", "nowhere"], "nowhere"),
        ([copy], "parity needs a trace to replay, or an engine to run"),
        ([copy, "--trace", trace, "--dtype", "int8"], "'int8' is not one of"),
        ([copy, "--trace", trace, "--margin", "1"], "1.0 is not in the range"),
        ([copy, "--trace", trace, "--num-speculative-tokens", "9"], "--num-speculative-tokens 9: the trace keeps"),
        ([copy, "--trace", trace, "--fake-quant", "w4"], "no recipe is called w4"),
        ([copy, "--trace", trace, "--extend", "nowhere"], "report.json cannot be read"),
    ):
        done = run("parity", LLAMA, *words)
        assert (done.exit_code, done.stdout) == (2, ""), words
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_inconclusive(run: Run, trace: Path) -> None:
    done = run("parity", LLAMA, "--trace", trace, "--fake-quant", "w4a16")
    assert done.exit_code == 3
    assert "8 prompts are too few to judge by." in flat(done)
    assert flat(done).count("too few to judge by") == 1
    assert "more prompts would settle it" in flat(done)
    assert "Next:" not in done.stdout  # there is no report to extend


def test_void(run: Run, trace: Path) -> None:
    done = run("parity", MLA, MLA, "--trace", trace)
    assert done.exit_code == 4
    assert "Nothing can be said about mla-eagle3 (2): the reference gets" in flat(done)
    assert flat(done).count("wrong wiring") == 1


# ── formats ────────────────────────────────────────────────────────────────────────


def test_json_is_the_report_without_its_records(run: Run, trace: Path, copy: Path) -> None:
    words = ("--fake-quant", "w4a16", "--attribute", "--self-test", "--format", "json", "--report", "out")
    done = run("parity", LLAMA, copy, "--trace", trace, *words)
    told = json.loads(done.stdout)
    assert told.pop("exit_code") == done.exit_code == 3
    assert list(told) == ["about", "arms", "comparisons", "controls", "speed", "accuracy"]
    written = json.loads(Path("out/report.json").read_text())
    assert told == {key: written[key] for key in told}
    assert [row["candidate"] for row in told["comparisons"]] == ["copy", "llama-eagle3 as w4a16"]
    assert told["comparisons"][0]["verdict"]["outcome"] == "pass"


@pytest.mark.parametrize("form", ["human", "json"])
def test_a_report_that_cannot_be_written_does_not_cost_the_verdict(
    form: str, run: Run, trace: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.fsync", full)
    done = run("parity", LLAMA, copy, "--trace", trace, "--report", "out", "--format", form)
    assert done.exit_code == 2
    assert "out could not be written: there is no room left" in done.stderr
    if form == "json":
        assert json.loads(done.stdout)["comparisons"][0]["verdict"]["outcome"] == "pass"  # one document, not two
    else:
        assert "drafts exactly as" in flat(done)
    assert "Report:" not in done.stdout
    assert not Path("out").exists()


def test_quiet_leaves_the_exit_code(run: Run, trace: Path, broken: Path) -> None:
    done = run("parity", LLAMA, broken, "--trace", trace, "--quiet", "--report", "out")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "")
    assert sorted(path.name for path in Path("out").iterdir()) == FILES


def test_costs_of_tensors_say_whose_they_are(run: Run, trace: Path, broken: Path) -> None:
    done = run("parity", LLAMA, broken, "--trace", trace, "--fake-quant", "fp8", "--attribute")
    titles = [line.strip() for line in done.stdout.splitlines() if line.startswith("Cost of each tensor")]
    assert titles == ["Cost of each tensor of broken", "Cost of each tensor of llama-eagle3 as fp8"]


# ── the report directory ───────────────────────────────────────────────────────────


def test_a_report_is_written_and_names_no_place(run: Run, trace: Path, copy: Path, tmp_path: Path) -> None:
    done = run("parity", LLAMA, copy, "--trace", trace, "--report", tmp_path / "out")
    assert done.stdout.splitlines()[-1].startswith("Report: ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    for name in FILES:
        assert str(tmp_path).encode() not in (tmp_path / "out" / name).read_bytes()
    command = read_report(tmp_path / "out").about.command
    assert command == ("draftconv", "parity", "llama-eagle3", "copy", "--trace", "trace", "--report", "out")


def test_an_occupied_directory_is_refused_before_anything_is_replayed(
    run: Run, trace: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("parity", LLAMA, copy, "--trace", trace, "--limit", 3, "--report", "out")
    assert run(*words).exit_code == 0
    before = Path("out/report.json").read_bytes()
    assert run(*words, "--overwrite", "--num-speculative-tokens", 2).exit_code == 0
    after = Path("out/report.json").read_bytes()
    assert after != before
    monkeypatch.setattr(api, "parity", lambda *_, **__: pytest.fail("it was replayed"))
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "out exists already" in done.stderr
    Path("mine").mkdir()
    Path("mine/thesis.tex").touch()
    done = run(*words[:-1], "mine", "--overwrite")
    assert done.exit_code == 2
    assert "mine" in done.stderr
    assert Path("mine/thesis.tex").exists()
    assert Path("out/report.json").read_bytes() == after


@pytest.mark.parametrize("tokenizer", ["whole", "broken", "none"])
def test_text_is_shown_where_a_tokenizer_can_be_read(
    tokenizer: str, run: Run, recorded: Recorded, broken: Path, tmp_path: Path
) -> None:
    shutil.copytree(recorded(), tmp_path / "with")
    if tokenizer == "whole":
        shutil.copy(DATA / "targets/llama/tokenizer.json", tmp_path / "with")
    elif tokenizer == "broken":
        (tmp_path / "with/tokenizer.json").write_text('{"version": "\x1b[31m"}')
    done = run("parity", LLAMA, broken, "--trace", "with", "--report", "out")
    assert done.exit_code == 1
    page = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert ("␣" in page) == (tokenizer == "whole")
    assert ("tokenizer.json of the trace cannot be read" in done.stderr) == (tokenizer == "broken")
    assert "\x1b" not in done.stderr


# ── an extension ───────────────────────────────────────────────────────────────────


def test_the_next_command_extends_the_report(run: Run, trace: Path, recorded: Recorded, tmp_path: Path) -> None:
    words = ("parity", LLAMA, "--trace", trace, "--fake-quant", "w4a16", "--limit", 8, "--report", "out")
    first = run(*words)
    assert first.exit_code == 3
    assert "other prompts, this run can be extended" in first.stderr
    last = first.stdout.splitlines()[-1]
    argv = shlex.split(last.removeprefix("Next: draftconv "))
    assert argv == ["parity", str(LLAMA), "--trace", "MORE", "--fake-quant", "w4a16",
                    "--extend", "out", "--report", "out-extended"]  # fmt: skip
    (tmp_path / "MORE").symlink_to(recorded(first=8, count=8))
    second = run(*argv)
    assert second.exit_code == 3
    told = [line.partition(" (content ")[0] for line in second.stderr.splitlines()]
    assert told == [f"Note: {name}: reference llama-eagle3" for name in ("the report that is extended", "added to it")]
    assert "extended report: reference llama-eagle3 (content " in flat(second)
    assert "Next:" not in second.stdout
    assert "extended once" in flat(second)
    assert read_report(tmp_path / "out-extended").comparisons[0].extended
    third = run(*argv[:-1], "again", "--extend", "out-extended")
    assert third.exit_code == 2
    assert "the report was extended before" in third.stderr


# ── the self-test ──────────────────────────────────────────────────────────────────


def test_the_self_test_needs_no_candidate(run: Run, trace: Path) -> None:
    done = run("parity", LLAMA, "--self-test", "--trace", trace)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].strip() == "Every broken drafter was noticed."
    assert done.stdout.count(" caught ") == 8


def test_a_fault_that_goes_unnoticed_fails(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "FAULTS", (controls.PlantedFault("nothing", "nothing is done", lambda of: of.arm),))
    done = run("parity", LLAMA, "--self-test", "--trace", trace)
    assert done.exit_code == 1
    assert "MISSED" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "Not noticed: nothing."


# ── strangers ──────────────────────────────────────────────────────────────────────


def test_a_name_cannot_drive_the_terminal(run: Run, trace: Path, tmp_path: Path) -> None:
    name = "\x1b]0;gone\x07[bold]\u202ex"
    shutil.copytree(LLAMA, tmp_path / name)
    for words in (("--self-test", "--attribute"), ("--format", "json"), ("--report", "out")):
        done = run("parity", LLAMA, name, "--trace", trace, *words)
        assert done.exit_code == 0, done.output
        for character in ("\x1b", "\x07", "\u202e"):
            assert character not in done.output
    assert "[bold]" in run("parity", LLAMA, name, "--trace", trace, "--limit", 1).stdout
    for path in Path("out").iterdir():
        assert b"\x1b" not in path.read_bytes()


# ── help and progress ──────────────────────────────────────────────────────────────


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from draftconv.cli import cli\n"
        "try: cli.main(['parity', '--help'])\n"
        "except SystemExit: print('\\0', *{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    text, _, imported = done.stdout.partition("\0")
    assert "Judge whether each CANDIDATE accepts as much as REFERENCE." in text
    heavy = {"torch", "numpy", "transformers", "pydantic", "jinja2", "matplotlib", "rich", "yaml", "huggingface_hub"}
    assert not heavy & set(imported.split())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stages_are_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with output.stages(replaying.STAGES) as progress:
        progress("reading", 10_000_000, 20_000_000)
        progress("reading", 20_000_000, 20_000_000)
        progress("replaying", 3, 12)
    shown = screen.getvalue()
    for said in ("reading", "100%", "B/s", "replaying", "25%", "tokens/s"):
        assert said in shown


def test_stages_are_silent_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with output.stages({"reading": "bytes"}) as progress:
        progress("reading", 1, 2)
    assert screen.getvalue() == ""
