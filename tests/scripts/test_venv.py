"""scripts/venv: does nothing when up to date, starts over when interrupted, prefers a CPU torch.

A stand-in for Python records what the script asks of it, so no test here touches a package index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("basename", "bash", "cat", "chmod", "cmp", "cp", "dirname", "env", "grep", "mkdir", "mv", "rm")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$STAND_IN_LOG"
case "$*" in
    *version_info*) [ -z "${STAND_IN_IS_OLD:-}" ] ;;
    *ensurepip*) [ -z "${STAND_IN_LACKS_VENV:-}" ] ;;
    "-m venv "*) rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
    *--dry-run*+cpu*) [ -n "${STAND_IN_LOCAL_CPU:-}" ] ;;
    *--dry-run*--index-url*) [ -n "${STAND_IN_CPU_INDEX:-}" ] ;;
    *--dry-run*--report*) [ -z "${STAND_IN_CUDA:-}" ] || echo '{"metadata": {"name": "nvidia-cublas"}}' ;;
    *--editable*) [ -z "${STAND_IN_FAILS:-}" ] ;;
esac
"""


@dataclass
class Checkout:
    """A copy of the script in a directory of its own, with a PATH that holds no real Python."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.path / "scripts").mkdir(parents=True)
        for name in ("venv", "python.sh"):
            shutil.copy(ROOT / "scripts" / name, self.path / "scripts" / name)
        (self.path / "constraints.txt").write_text("torch==2.13.0\n")
        (self.path / "pyproject.toml").write_text("[project]\n")
        tools = self.path / "bin"
        tools.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (tools / tool).symlink_to(found)
        self.add_program("uname", "#!/usr/bin/env bash\necho Linux\n")

    def add_program(self, name: str, text: str = STAND_IN) -> None:
        program = self.path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.path / "log").write_text("")
        return subprocess.run(
            [self.path / "scripts" / "venv"],
            env={"PATH": str(self.path / "bin"), "STAND_IN_LOG": str(self.path / "log"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def log(self) -> list[str]:
        return (self.path / "log").read_text().splitlines()

    def asked(self, words: str) -> bool:
        return any(words in line for line in self.log)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    checkout = Checkout(tmp_path)
    checkout.add_program("python3.11")
    return checkout


def test_the_second_run_does_nothing_and_takes_no_time(checkout: Checkout) -> None:
    first = checkout.run(STAND_IN_LOCAL_CPU="1")
    assert first.returncode == 0, first.stderr
    started = time.monotonic()
    second = checkout.run(STAND_IN_LOCAL_CPU="1")
    assert time.monotonic() - started < 1
    assert (second.returncode, second.stdout, second.stderr, checkout.log) == (0, "", "", [])


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_a_changed_pin_updates_the_environment_in_place(checkout: Checkout, name: str) -> None:
    checkout.run(STAND_IN_LOCAL_CPU="1")
    with (checkout.path / name).open("a") as file:
        file.write("# changed\n")
    assert checkout.run(STAND_IN_LOCAL_CPU="1").returncode == 0
    assert checkout.asked("--editable")
    assert not checkout.asked("-m venv")


def test_an_interrupted_installation_starts_over(checkout: Checkout) -> None:
    assert checkout.run(STAND_IN_LOCAL_CPU="1", STAND_IN_FAILS="1").returncode != 0
    assert checkout.run(STAND_IN_LOCAL_CPU="1").returncode == 0
    assert checkout.asked("-m venv --clear")


def test_an_interrupted_update_starts_over(checkout: Checkout) -> None:
    checkout.run(STAND_IN_LOCAL_CPU="1")
    (checkout.path / "constraints.txt").write_text("torch==2.14.0\n")
    assert checkout.run(STAND_IN_LOCAL_CPU="1", STAND_IN_FAILS="1").returncode != 0
    assert checkout.run(STAND_IN_LOCAL_CPU="1").returncode == 0
    assert checkout.asked("-m venv --clear")


def test_an_environment_whose_python_is_gone_starts_over(checkout: Checkout) -> None:
    checkout.run(STAND_IN_LOCAL_CPU="1")
    (checkout.path / ".venv" / "bin" / "python").unlink()
    assert checkout.run(STAND_IN_LOCAL_CPU="1").returncode == 0
    assert checkout.asked("-m venv --clear")


def test_a_cpu_build_at_hand_comes_first(checkout: Checkout) -> None:
    checkout.run(STAND_IN_LOCAL_CPU="1", STAND_IN_CPU_INDEX="1", STAND_IN_CUDA="1")
    assert checkout.asked("install --no-deps torch==2.13.0+cpu")
    assert not checkout.asked(CPU_INDEX)


def test_the_cpu_index_comes_second(checkout: Checkout) -> None:
    checkout.run(STAND_IN_CPU_INDEX="1", STAND_IN_CUDA="1")
    assert checkout.asked(f"install --no-deps --index-url {CPU_INDEX} torch==2.13.0")


def test_cuda_libraries_are_announced_before_they_are_downloaded(checkout: Checkout) -> None:
    result = checkout.run(STAND_IN_CUDA="1")
    assert result.returncode == 0
    assert "several GB to download" in result.stderr
    assert checkout.asked("install --constraint constraints.txt torch==2.13.0")


def test_a_default_index_without_cuda_libraries_is_taken_quietly(checkout: Checkout) -> None:
    assert "GB" not in checkout.run().stderr


def test_no_python(tmp_path: Path) -> None:
    result = Checkout(tmp_path).run()
    assert result.returncode == 2
    assert "no Python >= 3.11 found" in result.stderr


def test_only_an_old_python(checkout: Checkout) -> None:
    result = checkout.run(STAND_IN_IS_OLD="1")
    assert result.returncode == 2
    assert "no Python >= 3.11 found" in result.stderr


def test_a_python_without_venv(checkout: Checkout) -> None:
    result = checkout.run(STAND_IN_LACKS_VENV="1")
    assert result.returncode == 2
    assert "sudo apt install python3.11-venv" in result.stderr


def test_the_chosen_python_is_the_one_used(checkout: Checkout) -> None:
    checkout.add_program("my python")
    assert str(checkout.path / "bin" / "my python") in checkout.run(DRAFTCONV_PYTHON="my python").stderr
    shutil.rmtree(checkout.path / ".venv")
    result = checkout.run(DRAFTCONV_PYTHON=os.devnull)
    assert result.returncode == 2
    assert "DRAFTCONV_PYTHON=/dev/null" in result.stderr
