"""The program's stdout and stderr: on a full disk, closed, or with nobody at the other end."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from draftconv.api.verify import verify
from tests import tiny
from tests.cli.conftest import environment
from tests.reference.test_fixtures import DATA

TARGET = str(DATA / "targets" / "llama")
LOST = "Error: stdout could not be written: No space left on device\n"
FULL = Path("/dev/full")

MODULE = (sys.executable, "-m", "draftconv")
SCRIPT = (str(Path(sys.executable).with_name("draftconv")),)
SERVE = ("serve", "vllm", "--for", "vllm", "--target", TARGET)
PLAN = ("parity", "vllm", "vllm", "--for", "vllm", "--target", TARGET, "--launch", "--dry-run")

PRINTING = [
    (("--help",), 0),
    (("--version",), 0),
    (("inspect", "--help"), 0),
    (("inspect", "drafter"), 0),
    (("inspect", "drafter", "--for", "sglang", "--target", "kimi-k2.6", "--format", "json"), 1),
    (("convert", "drafter", "out", "--dry-run"), 0),
    (("convert", "drafter", "out", "--dry-run", "--format", "json"), 0),
    (("quantize", "drafter", "out", "--recipe", "w4a16", "--dry-run"), 0),
    (("verify", "vllm", "--against", "drafter", "--target", TARGET), 0),
    (("verify", "vllm", "--against", "drafter", "--target", TARGET, "--format", "json"), 0),
    (("diff", "vllm", "drafter"), 1),
    (("recipes",), 0),
    (("recipes", "w4a8", "--format", "json"), 0),
    (SERVE, 0),
    ((*SERVE, "--format", "json"), 0),
    (PLAN, 0),
    ((*PLAN, "--format", "json"), 0),
]
"""A command that prints, and its own exit code."""
QUIET = [("recipes", "--quiet"), ("inspect", "drafter", "--quiet")]


def name(value: object) -> str | None:
    return " ".join(word for word in value if word != TARGET) if isinstance(value, tuple) else None


commands = pytest.mark.parametrize(("words", "code"), PRINTING, ids=name)
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter, and the same converted for vLLM."""
    path = tmp_path_factory.mktemp("streams")
    (path / "drafter").symlink_to(DATA / "drafters" / "llama-eagle3.1")
    words = ("convert", "drafter", "vllm", "--to", "vllm", "--target", TARGET, "--quiet")
    subprocess.run([*MODULE, *words], cwd=path, env=environment(), check=True)
    return path


def run(
    *words: str, place: Path, redirect: str = "", program: tuple[str, ...] = MODULE, buffered: bool = True,
    stdout: int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """A command as a shell starts it, with redirections; what they leave of stdout and stderr is caught."""
    variables = {key: value for key, value in environment().items() if key != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", *program, *words],
        cwd=place,
        env=variables if buffered else {**variables, "PYTHONUNBUFFERED": "1"},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )


def notes_only(text: str) -> bool:
    return all(line.startswith("Note: ") for line in text.splitlines())


# ── stdout ─────────────────────────────────────────────────────────────────────────


@needs_full
@commands
def test_a_full_stdout_is_one_line_and_exit_code_2(words: tuple[str, ...], code: int, place: Path) -> None:
    done = run(*words, place=place, redirect=f">{FULL}")
    assert (done.returncode, done.stderr[-len(LOST) :]) == (2, LOST)
    assert notes_only(done.stderr[: -len(LOST)])
    assert code in (0, 1)  # what it would have been


@needs_full
@pytest.mark.parametrize("words", [("--help",), ("inspect", "drafter"), ("recipes", "--format", "json"), PLAN])
def test_nor_is_it_where_python_does_not_buffer(words: tuple[str, ...], place: Path) -> None:
    done = run(*words, place=place, redirect=f">{FULL}", buffered=False)
    assert (done.returncode, done.stderr) == (2, LOST)


@needs_full
@pytest.mark.parametrize("words", QUIET, ids=name)
def test_who_prints_nothing_loses_nothing(words: tuple[str, ...], place: Path) -> None:
    done = run(*words, place=place, redirect=f">{FULL}")
    assert (done.returncode, done.stderr) == (0, "")


@needs_full
@pytest.mark.parametrize("redirect", [f">{FULL}", f"2>{FULL}", ">&-", "2>&-", f">{FULL} 2>&-", f">{FULL} 2>{FULL}"])
@pytest.mark.parametrize("program", [MODULE, SCRIPT], ids=["module", "script"])
def test_both_ways_to_start(program: tuple[str, ...], redirect: str, place: Path) -> None:
    if not Path(program[0]).exists():
        pytest.skip("draftconv is not installed beside this Python")
    done = run("--version", place=place, redirect=redirect, program=program)
    assert done.returncode == (2 if f" >{FULL}" in f" {redirect}" else 0)
    assert done.stderr == (LOST if redirect == f">{FULL}" else "")


@commands
def test_a_reader_who_has_gone_is_no_failure(words: tuple[str, ...], code: int, place: Path) -> None:
    """`draftconv … | head`: nothing is said, and the exit code is the command's own."""
    reading, writing = os.pipe()
    os.close(reading)
    done = run(*words, place=place, stdout=writing)
    os.close(writing)
    assert done.returncode == code
    assert notes_only(done.stderr)


@pytest.mark.parametrize("redirect", [">&-", "<&- >&-"])
@pytest.mark.parametrize(("words", "code"), PRINTING[:6], ids=name)
def test_who_closes_stdout_wants_none(words: tuple[str, ...], code: int, redirect: str, place: Path) -> None:
    done = run(*words, place=place, redirect=redirect)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_an_output_that_is_cut_is_lost(buffered: bool, place: Path, tmp_path: Path) -> None:
    """A disk that takes the beginning."""
    whole = run("recipes", "--format", "json", place=place).stdout
    room = len(whole) - 100
    variables = {key: value for key, value in environment().items() if key != "PYTHONUNBUFFERED"}
    with (tmp_path / "cut").open("wb") as cut:
        done = subprocess.run(
            [*MODULE, "recipes", "--format", "json"], cwd=place, stdout=cut, stderr=subprocess.PIPE, text=True,
            env=variables if buffered else {**variables, "PYTHONUNBUFFERED": "1"}, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "Error: stdout could not be written: File too large\n")
    assert (tmp_path / "cut").read_text() == whole[:room]


def test_a_pipe_that_does_not_block(place: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    process = subprocess.Popen(
        [*MODULE, "recipes", "--format", "json"], cwd=place, stdout=writing, stderr=subprocess.PIPE, env=environment()
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, b"")
    assert text.decode() == run("recipes", "--format", "json", place=place).stdout


@needs_full
def test_what_was_written_stays(tmp_path: Path) -> None:
    """Only what was printed is lost."""
    tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter")
    done = run("convert", "drafter", "out", "--to", "vllm", place=tmp_path, redirect=f">{FULL}")
    assert (done.returncode, done.stderr) == (2, LOST)
    assert verify(tmp_path / "out", tmp_path / "drafter").passed


# ── stderr ─────────────────────────────────────────────────────────────────────────


@needs_full
@pytest.mark.parametrize("redirect", ["2>&-", f"2>{FULL}"])
@pytest.mark.parametrize(
    ("words", "code"),
    [((), 2), (("bogus",), 2), (("inspect",), 2), (("inspect", "nowhere"), 2), (("inspect", "nowhere", "--debug"), 1),
     (SERVE, 0)],
    ids=name,
)  # fmt: skip
def test_nobody_who_reads_errors(words: tuple[str, ...], code: int, redirect: str, place: Path) -> None:
    """The exit code is the command's own, and errors do not go where data goes."""
    done = run(*words, place=place, redirect=redirect)
    assert (done.returncode, done.stderr) == (code, "")
    assert bool(done.stdout) == (code == 0)


# ── closed ─────────────────────────────────────────────────────────────────────────

OPENING = """
import os, subprocess, sys
from draftconv.cli.streams import guard
guard()
taken = os.open("file", os.O_WRONLY | os.O_CREAT)
os.system("echo output; echo error >&2")
subprocess.run(["sh", "-c", "echo output; echo error >&2"], check=True)
print("output")
print("error", file=sys.stderr)
sys.exit(taken < 3)
"""


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(redirect: str, tmp_path: Path) -> None:
    done = run("-c", OPENING, place=tmp_path, redirect=redirect, program=(sys.executable,))
    assert done.returncode == 0
    assert (tmp_path / "file").read_bytes() == b""
    assert done.stdout == ("" if ">&-" in redirect.split() else "output\n" * 3)
