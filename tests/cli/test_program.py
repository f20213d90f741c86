"""The program as a process: what it imports, how it starts, and what is left when it is cut off."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.api.convert import convert
from draftconv.api.verify import verify
from tests import tiny
from tests.cli.conftest import Program, environment

HEAVY = {"torch", "transformers", "safetensors", "jinja2", "huggingface_hub", "pydantic", "matplotlib"}

LISTING = """
import sys
from draftconv.cli import main
try:
    main()
except SystemExit as error:
    assert not error.code, error.code
print("MODULES", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize(
    ("words", "never"),
    [
        (["--help"], HEAVY | {"numpy", "rich", "yaml"}),
        (["--version"], HEAVY | {"numpy", "rich", "yaml"}),
        (["inspect", "--help"], HEAVY | {"numpy", "rich", "yaml"}),
        (["convert", "--help"], HEAVY | {"numpy", "rich", "yaml"}),
        (["quantize", "--help"], HEAVY | {"numpy", "rich", "yaml"}),
        (["recipes", "--help"], HEAVY | {"numpy", "rich", "yaml"}),
        (["recipes"], HEAVY - {"pydantic"} | {"numpy"}),
        (["recipes", "w4a8", "--format", "json"], HEAVY - {"pydantic"} | {"numpy", "rich"}),
        (["inspect", "drafter"], HEAVY | {"numpy", "yaml"}),
        (["inspect", "drafter", "--format", "json"], HEAVY | {"numpy", "rich", "yaml"}),
        (["convert", "drafter", "out", "--dry-run"], HEAVY - {"jinja2"} | {"numpy", "yaml"}),
        (["convert", "drafter", "out", "--to", "vllm"], HEAVY - {"jinja2"}),
        (["verify", "drafter", "--against", "drafter"], HEAVY),
        (["diff", "drafter", "drafter"], HEAVY),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_only_what_is_needed_is_imported(words: list[str], never: set[str], tmp_path: Path) -> None:
    tiny.spell("reduced", "torchspec-native").write(tmp_path / "drafter")
    done = subprocess.run(
        [sys.executable, "-c", LISTING, *words], capture_output=True, text=True, cwd=tmp_path, check=True,
        env=environment(),
    )  # fmt: skip
    modules = set(done.stdout.splitlines()[-1].split()[1:])
    assert "draftconv" in modules
    assert modules & never == set()
    assert done.stderr == ""


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, draftconv; print(*sorted(name for name in sys.modules if name.startswith('draftconv')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.split() == ["draftconv"]


def test_the_program_talks_on_the_right_streams(program: Program, tmp_path: Path) -> None:
    tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter")
    done = program("convert", "drafter", "out", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["written"] is True
    done = program("convert", "drafter", "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: out exists already\n")
    assert "Traceback" not in done.stderr
    assert "Traceback" in program("convert", "drafter", "out", "--debug").stderr


def test_a_terminal_that_knows_ascii_only(tmp_path: Path) -> None:
    tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter-é")
    for words in (("inspect", "drafter-é"), ("convert", "drafter-é", "out", "--dtype", "float32")):
        done = subprocess.run(
            [sys.executable, "-m", "draftconv", *words], capture_output=True, cwd=tmp_path, timeout=60, check=True,
            env={**environment(), "PYTHONIOENCODING": "ascii"})  # fmt: skip
        assert done.stdout.isascii()


@pytest.mark.parametrize("words", [["inspect", "drafter"], ["inspect", "drafter", "--format", "json"],
                                   ["inspect", "drafter", "--for", "vllm"], ["--help"]])  # fmt: skip
def test_a_reader_that_goes_away_changes_nothing(words: list[str], tmp_path: Path) -> None:
    """`draftconv inspect … | head`: no traceback, and the exit code is still the command's own."""
    tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter")
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "draftconv", *words], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path,
        env=environment(),
    )  # fmt: skip
    os.close(writing)
    os.close(reading)
    _, stderr = process.communicate(timeout=60)
    assert stderr == b""
    assert process.returncode == ("--for" in words)


# ── cut off ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A drafter of 100 MB, so that a conversion can be caught in the middle."""
    base = tiny.VARIANTS["llama"]
    facts = replace(base.facts, hidden=1024, target_hidden=1024, intermediate=4096, vocab=8192, draft_vocab=8192,
                    attention=tiny.gqa(heads=16, kv_heads=8, head_dim=64))  # fmt: skip
    return tiny.spell(replace(base, facts=facts, awkward=False), "torchspec-native").write(tmp_path / "large")


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "draftconv", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env=environment(),
    )  # fmt: skip


def wait_for_work(process: subprocess.Popen[str], room: Path) -> bool:
    """Wait until the working directory appears; False when the process was faster."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if room.exists():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    raise TimeoutError


@pytest.mark.slow
def test_kill_9_at_random_moments(large: Path, tmp_path: Path) -> None:
    """What a kill leaves can never be mistaken for a result, and the next run removes it."""
    place = tmp_path / "place"
    place.mkdir()
    words: tuple[str, ...] = ("convert", str(large), "out", "--to", "vllm", "--dtype", "float32")
    chance = random.Random(1)
    killed = 0
    for _ in range(6):
        process = start(*words, cwd=place)
        if wait_for_work(process, place / ".out.draftconv"):
            time.sleep(chance.uniform(0, 0.15))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        assert {path.name for path in place.iterdir()} <= {"out", ".out.draftconv"}
        if (place / "out").exists():
            assert verify(place / "out", large).passed
            words = (*words[:7], "--overwrite")
    assert killed
    done = start(*words, cwd=place)
    done.communicate()
    assert done.returncode == 0
    assert [path.name for path in place.iterdir()] == ["out"]
    assert verify(place / "out", large).passed


@pytest.mark.slow
def test_ctrl_c_in_the_middle(large: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for delay in (0.0, 0.02, 0.05):
        process = start("convert", str(large), "out", "--to", "vllm", "--dtype", "float32", cwd=place)
        assert wait_for_work(process, place / ".out.draftconv" / "new")
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        if process.returncode == 0:
            assert [path.name for path in place.iterdir()] == ["out"]
            return
        assert process.returncode == 130, stderr
        assert "Traceback" not in stderr
        assert "Interrupted" in stderr
        assert stdout == ""
        assert list(place.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(program: Program, small_disk: Path, tmp_path: Path) -> None:
    tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter")
    done = program("convert", "drafter", "disk/out", "--dtype", "float32", "--to", "vllm")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: out could not be written: there is no room left on its file system\n"
        "       Nothing was left behind\n"
        "       Free some space or choose an output on another file system\n"
    )
    assert list(small_disk.iterdir()) == []
    assert program("convert", "drafter", "disk/out", "--to", "vllm").returncode == 0


def test_a_read_only_disk(program: Program, small_disk: Path, tmp_path: Path) -> None:
    tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = program("convert", "drafter", "disk/out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: out could not be written: Read-only file system\n")


def test_a_full_stdout_is_not_a_silent_success(tmp_path: Path) -> None:
    tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter")
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    for form in ("human", "json"):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "draftconv", "inspect", "drafter", "--format", form], stdout=full,
                stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment(), check=False,
            )  # fmt: skip
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["matplotlib"] = None
from draftconv.cli import main
main()
"""


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("inspect", "drafter"), 0),
        (("convert", "drafter", "out", "--to", "vllm", "--target", "target", "--dtype", "float32"), 0),
        (("verify", "out", "--against", "drafter"), 0),
        (("diff", "drafter", "out"), 1),
        (("recipes", "w4a8"), 0),
        (("serve", "out", "--for", "vllm", "--target", "target"), 0),
        (("quantize", "drafter", "small", "--recipe", "w4a16", "--target", "target"), 2),
        (("recipes", "--for", "vllm:b200", "--drafter", "drafter", "--target", "target"), 2),
        (("trace", "--target", "target", "--prompts", "prompts.txt", "--out", "trace"), 2),
    ],
)
def test_without_torch(argv: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """What copies and compares works; what computes says what to install."""
    tiny.spell("reduced", "torchspec-native").write(tmp_path / "drafter")
    tiny.write_target(tmp_path / "target")
    (tmp_path / "prompts.txt").write_text("hello\n")
    if argv[0] in ("verify", "diff", "serve"):
        convert(tmp_path / "drafter", tmp_path / "out", to="vllm", target=str(tmp_path / "target"))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *argv], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    if code == 2:
        assert done.stderr.startswith("Error: torch is not installed\n")
        assert done.stderr.endswith("`pip install 'draftconv[torch]'`\n")
    assert "fault of draftconv" not in done.stderr
