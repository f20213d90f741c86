"""`draftconv accept` and `parity --baseline`: what is said where, exit codes, and the report directory."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import Result

from draftconv.api import accept as api
from draftconv.report.acceptance.write import read_acceptance
from tests.cli.conftest import Run
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

LLAMA, REDUCED, MLA = (DATA / "drafters" / name for name in ("llama-eagle3", "llama-eagle3-reduced", "mla-eagle3"))
FILES = ["accept.html", "accept.json", "accept.md", "junit.xml"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def trace(recorded: Recorded, tmp_path: Path) -> Path:
    """A trace beside the working directory's files, named as a person would."""
    (tmp_path / "trace").symlink_to(recorded())
    return tmp_path / "trace"


@pytest.fixture
def enough(recorded: Recorded, tmp_path: Path) -> Path:
    """A trace of as many prompts as a gate wants."""
    (tmp_path / "enough").symlink_to(recorded(count=32))
    return tmp_path / "enough"


def flat(result: Result) -> str:
    return " ".join(result.stdout.split())


# ── exit codes, each by a real run ─────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("least", "code", "outcome"), [("1.3", 0, "pass"), ("2.9", 1, "fail"), ("1.9", 3, "inconclusive")]
)
def test_the_gate(least: str, code: int, outcome: str, run: Run, enough: Path) -> None:
    done = run("accept", LLAMA, "--trace", enough, "--min-al", least)
    assert (done.exit_code, done.stderr) == (code, "")
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith(" llama-eagle3 "))
    assert row[-1] == outcome
    assert f"more than {least} is asked for." in flat(done)


def test_few_prompts_tell_too_little(run: Run, trace: Path) -> None:
    done = run("accept", LLAMA, "--trace", trace, "--min-al", "1")
    assert done.exit_code == 3
    assert "8 prompts are too few to judge by, 30 the fewest" in flat(done)


def test_nothing_asked_for_passes(run: Run, trace: Path) -> None:
    done = run("accept", LLAMA, "--trace", trace)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "asked for" not in done.stdout


def test_one_that_fails_fails_them_all(run: Run, enough: Path) -> None:
    done = run("accept", LLAMA, REDUCED, "--trace", enough, "--min-al", "3.5")
    assert done.exit_code == 1
    titles = [line for line in done.stdout.splitlines() if line.startswith("By drafted tokens")]
    assert titles == ["By drafted tokens: llama-eagle3", "By drafted tokens: llama-eagle3-reduced"]


def test_wrong_wiring_is_told(run: Run, trace: Path) -> None:
    done = run("accept", MLA, "--trace", trace, "--min-al", "1")
    assert "look at its wiring" in flat(done)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["accept", LLAMA], "Missing option '--trace'"),
        (["accept", "--trace", "trace"], "Missing argument 'DRAFTER...'"),
        (["accept", LLAMA, "--trace", "nowhere"], "nowhere"),
        (["accept", LLAMA, "--trace", "trace", "-k", "9"], "--num-speculative-tokens 9: the trace keeps 4"),
        (["accept", LLAMA, "--trace", "trace", "--min-al", "0.5"], "0.5 is not in the range"),
        (["accept", LLAMA, "--trace", "trace", "--min-al", "4"], "--min-al 4: with 3 drafted tokens"),
        (["accept", LLAMA, "--trace", "trace", "--min-al", "nan"], "--min-al nan: with 3 drafted tokens"),
        (["accept", LLAMA, "--trace", "trace", "--min-al", "inf"], "--min-al inf: with 3 drafted tokens"),
        (["accept", LLAMA, "--trace", "trace", "--min-al", "much"], "'much' is not a valid float"),
        (["accept", LLAMA, "--trace", "trace", "--dtype", "int8"], "'int8' is not one of"),
        (["accept", LLAMA, "--trace", "trace", "--semantics", "nobody"], "'nobody' is not one of"),
        (["accept", LLAMA, "--trace", "trace", "--as", "nobody"], "nobody"),
        (["accept", LLAMA, "--trace", "trace", "--target-step", "5"], "--target-step has no meaning without --speed"),
        (["accept", LLAMA, "--trace", "trace", "--speed", "b200-vllm"], "names a machine, and not how long a step"),
        (["accept", LLAMA, "--trace", "trace", "--speed", "cpu-vllm", "--target-step", "5"], "no published bandwidth"),
        (
            ["accept", LLAMA, "--trace", "trace", "--speed", "b200-vllm", "--target-step", "0"],
            "0.0 is not in the range",
        ),
        (["accept", LLAMA, "--trace", "trace", "--speed", "b200-vllm", "--target-step", "nan"], "no time that a step"),
        (["accept", LLAMA, "--trace", "trace", "--speed", "nobody"], "no profile is called nobody"),
        (["accept", LLAMA, "--trace", "trace", "--speed", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["accept", LLAMA, "--trace", "trace", "--speed", "trace"], "report.json"),
        (["parity", LLAMA, "--baseline", "nowhere", "--trace", "trace"], "nowhere cannot be read"),
        (["parity", LLAMA, "--baseline", "trace/trace.json", "--trace", "trace"], "trace.json: "),
    ],
)
@pytest.mark.usefixtures("trace")
def test_bad_input_is_one_error_with_a_cure(words: list[str], said: str, run: Run) -> None:
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("Error: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--min-al", "4"], ["--trace", "nowhere"], ["--semantics", "nobody"]])
def test_errors_as_json(words: list[str], run: Run, trace: Path) -> None:
    done = run("accept", LLAMA, "--trace", trace, *words, "--format", "json")
    assert done.exit_code == 2
    (error,) = json.loads(done.stdout).values()
    assert error["exit_code"] == 2
    assert error["what"]


# ── formats ────────────────────────────────────────────────────────────────────────


def test_json_is_the_report_without_its_records(run: Run, trace: Path) -> None:
    done = run("accept", LLAMA, REDUCED, "--trace", trace, "--format", "json", "--report", "out")
    told = json.loads(done.stdout)
    assert told.pop("exit_code") == done.exit_code == 0
    written = json.loads(Path("out/accept.json").read_text())
    assert told == {key: value for key, value in written.items() if key not in ("records", "records_sha256")}
    assert list(told) == ["format", "version", "about", "longest", "min_al", "arms", "mapped", "costs", "drafters"]
    assert [len(row["lengths"]) for row in told["drafters"]] == [4, 4]


def test_one_drafter_fits_a_screen(run: Run, enough: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = run("accept", REDUCED, "--trace", enough, "--min-al", "1.5")
    read, *lines = done.stdout.splitlines()
    assert read.startswith("llama-eagle3-reduced is read as specforge-sglang")
    on_screen = [line[at : at + 100] for line in (read, *lines) for at in range(0, max(len(line), 1), 100)]
    assert len(on_screen) <= 40
    sentences = ("llama-eagle3-reduced: accept length", "llama-eagle3-reduced can draft 1024 tokens")
    assert all(len(line) <= 100 for line in lines if not line.startswith(sentences))
    assert sum(line.startswith(sentences) for line in lines) == 2


def test_more_is_told_to_who_asks(run: Run, trace: Path) -> None:
    brief, verbose = (run(*words, "accept", REDUCED, "--trace", trace).stdout for words in ((), ("-v",)))
    for title in ("Prompts at both ends", "Tokens that its map lacks", "Shared by all"):
        assert title not in brief
        before, _, _ = verbose.partition(f"\n{title}\n")
        assert before != verbose
        assert before.endswith("\n")  # an empty line before each part


def test_quiet_leaves_the_exit_code(run: Run, enough: Path) -> None:
    done = run("accept", LLAMA, "--trace", enough, "--min-al", "2.9", "--quiet", "--report", "out")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "")
    assert sorted(path.name for path in Path("out").iterdir()) == FILES


# ── which K pays ───────────────────────────────────────────────────────────────────


def test_step_times_from_a_file(run: Run, enough: Path) -> None:
    Path("steps.yaml").write_text("loads:\n  - {concurrency: 4, step_ms: {0: 10, 1: 11, 3: 12}}\n")
    done = run("accept", LLAMA, "--trace", enough, "--speed", "steps.yaml", "--format", "json")
    (drafter,) = json.loads(done.stdout)["drafters"]
    (speed,) = drafter["speeds"]
    assert [row["step"] for row in speed["depths"]] == [11, 11.5, 12, 12.5]
    lengths = [row["length"]["value"] for row in drafter["lengths"]]
    rates = [1000 * length / step for length, step in zip(lengths, [11, 11.5, 12, 12.5], strict=True)]
    assert [row["rate"]["value"] for row in speed["depths"]] == pytest.approx(rates)
    assert speed["best"] == rates.index(max(rates)) + 1
    shown = run("accept", LLAMA, "--trace", enough, "--speed", "steps.yaml")
    assert f"llama-eagle3, 4 at a time: K = {speed['best']} is the fastest: {max(rates):.1f} tokens/s" in flat(shown)


def test_step_times_of_a_profile_are_an_estimate(run: Run, trace: Path) -> None:
    done = run("accept", LLAMA, "--trace", trace, "--speed", "b200-vllm", "--target-step", "5", "-v")
    assert done.exit_code == 0
    assert "(an estimate, the least that drafting can take: 0.002 GB per draft step and 0.000 GB per round" in flat(
        done
    )
    assert "read by 8 x b200 at 8 TB/s each)" in flat(done)


# ── the report directory ───────────────────────────────────────────────────────────


def test_a_report_is_written_and_names_no_place(run: Run, trace: Path, tmp_path: Path) -> None:
    done = run("accept", LLAMA, "--trace", trace, "--report", tmp_path / "out")
    assert done.stdout.splitlines()[-1].startswith("Report: ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    for name in FILES:
        assert str(tmp_path).encode() not in (tmp_path / "out" / name).read_bytes()
    command = read_acceptance(tmp_path / "out").about.command
    assert command == ("draftconv", "accept", "llama-eagle3", "--trace", "trace", "--report", "out")


def test_an_occupied_directory_is_refused_before_anything_is_replayed(
    run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("accept", LLAMA, "--trace", trace, "--limit", 3, "--report", "out")
    assert run(*words).exit_code == 0
    before = Path("out/accept.json").read_bytes()
    assert run(*words, "--overwrite", "-k", 2).exit_code == 0
    after = Path("out/accept.json").read_bytes()
    assert after != before
    monkeypatch.setattr(api, "accept", lambda *_, **__: pytest.fail("it was replayed"))
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "out exists already" in done.stderr
    Path("mine").mkdir()
    Path("mine/thesis.tex").touch()
    done = run(*words[:-1], "mine", "--overwrite")
    assert done.exit_code == 2
    assert Path("mine/thesis.tex").exists()
    assert Path("out/accept.json").read_bytes() == after


@pytest.mark.parametrize("form", ["human", "json"])
def test_a_full_disk_does_not_cost_the_figures(
    form: str, run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.fsync", full)
    done = run("accept", LLAMA, "--trace", trace, "--report", "out", "--format", form)
    assert done.exit_code == 2
    assert "out could not be written: there is no room left" in done.stderr
    if form == "json":
        assert json.loads(done.stdout)["drafters"][0]["arm"] == "llama-eagle3"  # one document, not two
    else:
        assert "By drafted tokens" in done.stdout
    assert "Report:" not in done.stdout
    assert not Path("out").exists()


def test_text_is_shown_where_a_tokenizer_can_be_read(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    shutil.copytree(recorded(), tmp_path / "with")
    shutil.copy(DATA / "targets/llama/tokenizer.json", tmp_path / "with")
    assert run("accept", REDUCED, "--trace", "with", "--report", "out").exit_code == 0
    ids = run("accept", REDUCED, "--trace", recorded(), "--report", "ids")
    assert ids.exit_code == 0
    text, plain = (Path(out, "accept.md").read_text(encoding="utf-8") for out in ("out", "ids"))
    assert "the target wrote" in text
    assert text != plain


# ── a baseline ─────────────────────────────────────────────────────────────────────


def test_a_candidate_is_compared_with_a_baseline(run: Run, trace: Path, tmp_path: Path) -> None:
    assert run("accept", LLAMA, "--trace", trace, "--report", "base").exit_code == 0
    copy = shutil.copytree(LLAMA, tmp_path / "copy")
    words = ("--baseline", "base/accept.json", "--trace", trace)
    same = run("parity", copy, *words)
    assert (same.exit_code, same.stderr) == (0, "")
    assert "copy drafts exactly as llama-eagle3 does: the counts of all 8 requests are equal." in flat(same)
    other = run("parity", REDUCED, copy, *words, "--report", "out")
    assert other.exit_code == 1
    assert "a baseline of draftconv" in Path("out/report.md").read_text(encoding="utf-8")
    refused = run("parity", copy, *words, "--limit", 2)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "the baseline is of another trace" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_edited_baseline_is_refused(run: Run, trace: Path) -> None:
    assert run("accept", LLAMA, "--trace", trace, "--limit", 2, "--report", "base").exit_code == 0
    path = Path("base/accept.json")
    path.write_text(path.read_text().replace('"counted": 32', '"counted": 31', 1))
    done = run("parity", LLAMA, "--baseline", path, "--trace", trace, "--limit", 2)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "its records are not those that it was written with" in done.stderr


# ── strangers ──────────────────────────────────────────────────────────────────────


def test_a_name_cannot_drive_the_terminal(run: Run, trace: Path, tmp_path: Path) -> None:
    name = "\x1b]0;gone\x07[bold]\u202ex"
    shutil.copytree(REDUCED, tmp_path / name)
    for words in (("-v",), ("--format", "json"), ("--report", "out")):
        done = run("accept", name, "--trace", trace, *words)
        assert done.exit_code == 0, done.output
        for character in ("\x1b", "\x07", "\u202e"):
            assert character not in done.output
    for path in Path("out").iterdir():
        assert b"\x1b" not in path.read_bytes()
