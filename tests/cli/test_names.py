"""Names as people type them: short and former options, `-q` and `-v`, and that no text uses a former name."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from draftconv.cli import COMMANDS, cli
from draftconv.cli.options import Former
from draftconv.errors import UsageError
from tests import tiny
from tests.cli.conftest import Program, Run
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

ROOT = Path(__file__).parents[2]
LLAMA, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"


def commands() -> dict[str, click.Command]:
    found = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    return {name: command for name, command in found.items() if command is not None}


FORMER = {
    (name, param.flag): max(param.today.opts, key=len)
    for name, command in commands().items()
    for param in command.params
    if isinstance(param, Former)
}
"""Command and former option → what it is called now."""


# ── options ────────────────────────────────────────────────────────────────────────


def test_what_was_renamed() -> None:
    k = {"--depth": "--num-speculative-tokens", "--drafts": "--num-speculative-tokens"}
    tp = {"--tp": "--tensor-parallel-size", "--tensor-parallel": "--tensor-parallel-size"}
    wanted = {"quantize": tp, "serve": k | tp, "trace": k | tp, "parity": k | tp}
    assert {(name, flag): today for name, found in wanted.items() for flag, today in found.items()} == FORMER


@pytest.mark.parametrize(("name", "flag"), FORMER)
def test_a_former_option_is_the_option_of_today(name: str, flag: str, run: Run) -> None:
    command, today = commands()[name], FORMER[name, flag]
    told = {**dict.fromkeys(("source", "out", "checkpoint", "reference"), "x")}
    words = [told[str(p.name)] for p in command.params if isinstance(p, click.Argument) and p.required]
    needed = [(max(p.opts, key=len), "x") for p in command.params if isinstance(p, click.Option) and p.required]
    words += [word for pair in needed for word in pair]
    parent = click.Context(cli, **cli.context_settings)  # as the program asks: a command keeps its help option
    with pytest.warns(DeprecationWarning, match=f"^{flag} is now {today}; the old name goes with the next release$"):
        before = command.make_context(name, [*words, flag, "4"], parent=parent)
    after = command.make_context(name, [*words, f"{today}=4"], parent=parent)
    assert before.params == after.params
    assert 4 in after.params.values()
    key = next(str(p.name) for p in command.params if isinstance(p, click.Option) and today in p.opts)
    assert before.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE
    help_text = run(name, "--help").stdout
    assert not re.search(rf"(?<![\w-]){flag}(?![\w-])", help_text)
    done = run(name, *words, flag, "4", today, "5")
    assert done.exit_code == 2
    assert f"{flag} and {today} are the same option; give {today}." in done.stderr
    assert run(name, *words, flag, "0").exit_code == 2
    assert run(name, *words, flag).exit_code == 2


SERVE = ("--for", "vllm", "--target", TARGET)


def test_short_names_and_their_long_ones(run: Run) -> None:
    wanted = run("serve", LLAMA, *SERVE, "--num-speculative-tokens", 4, "--tensor-parallel-size", 8)
    assert "--tensor-parallel-size 8" in wanted.stdout
    assert '"num_speculative_tokens": 4' in wanted.stdout
    for words in (("-k", 4, "-tp", 8), ("-tp", "8", "-k4"), ("-tp=8", "-k", "4")):
        assert run("serve", LLAMA, *SERVE, *words).stdout == wanted.stdout
    former = run("serve", LLAMA, *SERVE, "--drafts", 4, "--tp", 8)
    assert former.stdout == wanted.stdout
    assert former.stderr == (
        "Note: --drafts is now --num-speculative-tokens; the old name goes with the next release\n"
        "Note: --tp is now --tensor-parallel-size; the old name goes with the next release\n" + wanted.stderr
    )


def test_the_value_of_another_option_is_left_alone(run: Run) -> None:
    done = run("serve", LLAMA, *SERVE, "--engine-python", "--tp")
    assert "'--tp' does not exist" in done.stderr
    assert "Note" not in done.stderr


@pytest.mark.parametrize("typed", ["float16", "Float16", "fp16", "half", "HALF"])
def test_dtypes_as_people_type_them(typed: str, run: Run) -> None:
    done = run("convert", LLAMA, typed, "--dtype", typed, "--format", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert {tensor["dtype"] for tensor in json.loads(done.stdout)["tensors"]} == {"F16"}
    assert json.loads((Path(typed) / "draftconv.json").read_text())["options"]["dtype"] == "f16"


@pytest.mark.parametrize(("typed", "today"), [("bf16", "bfloat16"), ("f16", "float16"), ("f32", "float32")])
def test_former_dtypes_of_convert(typed: str, today: str, run: Run) -> None:
    done = run("convert", LLAMA, "one", "--dtype", typed, "--no-card")
    told = f"Note: --dtype {typed} is now --dtype {today}; the old name goes with the next release\n"
    assert (done.exit_code, done.stderr) == (0, told)
    assert run("convert", LLAMA, "two", "--dtype", today, "--no-card").stderr == ""
    one, two = ({path.name: path.read_bytes() for path in Path(name).iterdir()} for name in ("one", "two"))
    assert one == two
    assert json.loads(one["draftconv.json"])["options"]["dtype"] == typed


def test_next_and_dry_runs_name_the_option_of_today(run: Run, drafter: Path) -> None:
    done = run("convert", drafter, "out", "--to", "VLLM", "--dtype", "bf16", "--dry-run")
    assert done.stdout.rstrip().endswith("--dtype bfloat16")


def test_case_of_names(run: Run, drafter: Path) -> None:
    made = {}
    for name, to in (("lower", "vllm"), ("upper", "VLLM")):
        assert run("convert", drafter, name, "--to", to, "--no-card", "-q").exit_code == 0
        made[name] = {path.name: path.read_bytes() for path in Path(name).iterdir()}
    assert made["lower"] == made["upper"]
    assert run("inspect", drafter, "--from", "TorchSpec-Native", "--format", "JSON").exit_code == 0
    for name in ("W4A16", "B200-vLLM", "MT-Bench"):
        done = run("recipes", name, "--format", "json")
        assert json.loads(done.stdout)["name"] == name.lower()
    assert "did you mean w4a16" in run("recipes", "W4A61").stderr.lower()


# ── how much is said ───────────────────────────────────────────────────────────────


QUIET: Mapping[str, tuple[object, ...]] = {
    "inspect": (LLAMA,),
    "convert": (LLAMA, "out"),
    "quantize": (LLAMA, "out", "--recipe", "w4a16"),
    "recipes": ("w4a16",),
    "verify": (LLAMA, "--against", LLAMA),
    "diff": (LLAMA, LLAMA),
    "serve": (LLAMA, *SERVE),
}


@pytest.mark.parametrize("name", QUIET)
@pytest.mark.parametrize("where", ["before", "after"])
def test_quiet_says_nothing_but_errors(name: str, where: str, run: Run) -> None:
    words = ("-q", name, *QUIET[name]) if where == "before" else (name, *QUIET[name], "--quiet")
    done = run(*words)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    wrong = run(*words, "--no-such-option")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "Error: No such option" in wrong.stderr
    assert run(name, *QUIET[name], "--overwrite" if "out" in QUIET[name] else "--format=human").stdout != ""


def test_quiet_keeps_former_names_to_itself_and_errors_not(run: Run) -> None:
    assert run("serve", LLAMA, *SERVE, "--tp", 2, "-q").stderr == ""
    assert run("-q", "serve", LLAMA, *SERVE, "--tp", 2).stderr == ""
    done = run("inspect", "nowhere", "-q")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: nowhere does not exist")


def test_a_check_that_fails_is_the_exit_code(run: Run, drafter: Path, tmp_path: Path) -> None:
    other = tiny.spell("reduced", "torchspec-native").write(tmp_path / "other")
    done = run("diff", drafter, other, "-q")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "")


def test_the_former_spelling_of_quiet(run: Run, drafter: Path) -> None:
    done = run("inspect", drafter, "--format", "quiet")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "Note: --format quiet is now --quiet; the old name goes with the next release\n"


def test_quiet_parity(run: Run, recorded: Recorded) -> None:
    done = run("parity", LLAMA, LLAMA, "--trace", recorded(), "--quiet", "-k", 3)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_verbose_tells_on_stderr_what_is_done(run: Run, drafter: Path) -> None:
    plain = run("convert", drafter, "one", "--dtype", "float32", "--no-card")
    done = run("convert", drafter, "out", "--dtype", "float32", "--no-card", "-v")
    assert done.stdout == plain.stdout.replace("one", "out")
    lines = done.stderr.splitlines()
    assert all(line.startswith("Info: ") for line in lines)
    assert lines[0] == f"Info: opened {drafter}: config.json, 14 tensors in model.safetensors"
    assert lines[1].startswith("Info: drafter: layout torchspec-native, certain: TorchSpec's version mark")
    assert "Info: pass dtype: 14 changes" in lines
    assert "Info: pass quantize: 0 changes" in lines
    assert lines[-1] == "Info: reopened and checked 3 files; out appears now"
    assert run("-v", "inspect", drafter).stderr.startswith("Info: opened ")
    assert run("inspect", drafter).stderr == ""
    assert logging.getLogger("draftconv").handlers == []


def test_what_is_told_drives_no_terminal(run: Run, tmp_path: Path) -> None:
    path = tiny.spell("llama", "torchspec-native").write(tmp_path / "a\x1b[31m\nb")
    done = run("inspect", path, "-v")
    assert "\x1b" not in done.stderr
    assert "a\\x1b[31m\\nb" in done.stderr
    assert all(line.startswith("Info: ") for line in done.stderr.splitlines())


def test_quiet_and_verbose_exclude_one_another(run: Run, drafter: Path) -> None:
    for words in (("inspect", drafter, "-q", "-v"), ("-v", "inspect", drafter, "-q"), ("-q", "inspect", drafter, "-v")):
        done = run(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "--quiet and --verbose exclude one another" in done.stderr


def test_python_hears_the_same_by_logging(drafter: Path, caplog: pytest.LogCaptureFixture) -> None:
    from draftconv import inspect

    with caplog.at_level(logging.INFO, "draftconv"):
        inspect(drafter)
    assert caplog.messages[0] == f"opened {drafter}: config.json, 14 tensors in model.safetensors"


def test_warnings_of_libraries_are_not_for_the_quiet(program: Program, drafter: Path) -> None:
    done = program("inspect", drafter, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"])
@pytest.mark.parametrize("given", [None, "0"])
def test_libraries_draw_no_bars_into_a_log(
    given: str | None, name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    seen: list[str | None] = []

    def look(*_: object, **__: object) -> None:
        seen.append(os.environ.get(name))
        raise UsageError("enough")

    monkeypatch.setattr("draftconv.cli.inspect.inspect", look)
    run("inspect", "drafter")
    assert seen == [given or "1"]
    assert os.environ.get(name) == given


# ── texts ──────────────────────────────────────────────────────────────────────────

FLAGS = "|".join(sorted({flag for _, flag in FORMER}, key=len, reverse=True))
USED = re.compile(rf"(?<![\w-])(?:{FLAGS})(?![\w-])|--format[ =]quiet|--dtype[ =](?:bf16|f16|f32)\b")
MAY_NAME_THEM = {"CHANGELOG.md", "tests/cli/test_names.py"}


def texts() -> Iterator[Path]:
    for folder in ("draftconv", "docs", "recipes", "scripts", "tests", ".github", ".ci"):
        found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        yield from (path for path in found if "data" not in path.parts and "__pycache__" not in path.parts)
    yield from ROOT.glob("*.md")


def former_names(text: str) -> list[str]:
    return [line for line in text.splitlines() if USED.search(line)]


def test_no_text_uses_a_former_name() -> None:
    """But the line that declares them."""
    found = {}
    for path in texts():
        name = path.relative_to(ROOT).as_posix()
        try:
            lines = former_names(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if name not in MAY_NAME_THEM and lines:
            found[name] = lines
    declared = found.pop("draftconv/options.py")
    assert [re.findall(r"former=\(.*?\)", line)[0] for line in declared] == [
        'former=("--depth", "--drafts")',
        'former=("--tp", "--tensor-parallel")',
    ]
    quiet = found.pop("draftconv/cli/options.py")
    assert [ast.unparse(ast.parse(line.strip())) for line in quiet] == ["warn_former('--format quiet', '--quiet')"]
    assert found == {}


@pytest.mark.parametrize(
    "text",
    ["give --depth 3", "`--tp`", "--tensor-parallel=8", "(--drafts)", "parity a b --format quiet", "--dtype bf16"],
)
def test_a_former_name_would_be_noticed(text: str) -> None:
    assert former_names(text)
    today = "--num-speculative-tokens --tensor-parallel-size 8 --tp-size 8 --depth-first --format json --dtype bfloat16"
    assert not former_names(today)
