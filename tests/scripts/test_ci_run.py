""".ci/run: scripts/test with nothing of the caller's environment but what CONTRIBUTING.md explains.

A stand-in for scripts/test tells what it was given.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import shebang

ROOT = Path(__file__).parents[2]
STAND_IN = f"""{shebang("-S")}
import json, os, pathlib, sys, time
home = pathlib.Path.home()
found = {{"argv": sys.argv[1:], "environment": dict(os.environ), "home": [str(path) for path in home.iterdir()]}}
(home / "left").mkdir()
(pathlib.Path(__file__).parents[1] / "told").write_text(json.dumps(found))
if "wait" in sys.argv:
    time.sleep(20)
sys.exit(7)
"""
NAMES = re.compile(r"DRAFTCONV_[A-Z_]*[A-Z]")


@dataclass(frozen=True)
class Told:
    """What scripts/test saw. `home`: what lay there."""

    argv: list[str]
    environment: dict[str, str]
    home: list[str]


@dataclass(frozen=True)
class Caller:
    """Somebody with a checkout, a HOME and a directory for temporary files; all with a space in their names."""

    path: Path

    def __post_init__(self) -> None:
        for name in ("check out/.ci", "check out/scripts", "ho me", "tmp dir"):
            (self.path / name).mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "run", self.program)
        test = self.path / "check out" / "scripts" / "test"
        test.write_text(STAND_IN)
        test.chmod(0o755)

    @property
    def home(self) -> Path:
        return self.path / "ho me"

    @property
    def program(self) -> Path:
        return self.path / "check out" / ".ci" / "run"

    @property
    def temporary(self) -> Path:
        return self.path / "tmp dir"

    def environment(self, **variables: str) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.home), "TMPDIR": str(self.temporary), **variables}

    def run(self, *words: str, **variables: str) -> Told:
        done = subprocess.run(
            [self.program, *words], cwd=self.path, env=self.environment(**variables), capture_output=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (7, b"", b"")
        return self.told()

    def told(self) -> Told:
        return Told(**json.loads((self.path / "check out" / "told").read_text()))


@pytest.fixture
def caller(tmp_path: Path) -> Caller:
    return Caller(tmp_path)


def test_arguments_and_the_exit_code_are_handed_on(caller: Caller) -> None:
    assert caller.run("tests/layouts", "-k", "a or b").argv == ["tests/layouts", "-k", "a or b"]
    assert caller.run().argv == []


def test_what_a_caller_has_set_does_not_get_there(caller: Caller) -> None:
    names = (
        "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "OMP_NUM_THREADS", "HF_HOME", "HF_TOKEN", "TERM",
        "COLUMNS", "NO_COLOR", "TZ", "LC_ALL", "XDG_CACHE_HOME", "VLLM_CPU_KVCACHE_SPACE", "GIT_DIR",
        "DRAFTCONV_API_KEY", "DRAFTCONV_ORACLES",
    )  # fmt: skip
    callers = dict.fromkeys(names, "C")
    seen = caller.run(**callers, LANG="POSIX").environment
    assert not callers.keys() & seen.keys()
    assert seen["LANG"] == "C.UTF-8"


def test_home_is_empty_and_gone_afterwards(caller: Caller) -> None:
    (caller.home / ".cache").mkdir()
    told = caller.run()
    assert told.home == []
    assert Path(told.environment["HOME"]).parent == caller.temporary
    assert list(caller.temporary.iterdir()) == []
    assert [path.name for path in caller.home.iterdir()] == [".cache"]


def test_home_is_gone_after_a_signal(caller: Caller) -> None:
    process = subprocess.Popen([caller.program, "wait"], env=caller.environment(), start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while not (caller.path / "check out" / "told").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(caller.temporary.iterdir()) != []
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) != 0
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert list(caller.temporary.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["CI", "DRAFTCONV_PYTHON", "DRAFTCONV_ENGINE_PYTHON", "DRAFTCONV_SGLANG_PYTHON", "DRAFTCONV_SHARED", "HTTPS_PROXY",
     "https_proxy", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NETRC", "PIP_INDEX_URL", "PIP_CONFIG_FILE",
     "PIP_CACHE_DIR", "UV_CACHE_DIR"],
)  # fmt: skip
def test_what_package_clients_and_the_scripts_need_does(name: str, caller: Caller) -> None:
    assert caller.run(**{name: "of the caller"}).environment[name] == "of the caller"
    assert caller.run().environment.get(name) != "of the caller"


@pytest.mark.parametrize("settings", [".config/pip/pip.conf", ".pip/pip.conf"])
def test_pip_still_finds_its_settings_passwords_and_downloads(settings: str, caller: Caller) -> None:
    (caller.home / settings).parent.mkdir(parents=True)
    for name in (settings, ".netrc"):
        (caller.home / name).touch()
    seen = caller.run().environment
    assert seen["PIP_CONFIG_FILE"] == str(caller.home / settings)
    assert seen["NETRC"] == str(caller.home / ".netrc")
    if sys.platform == "linux":
        assert seen["PIP_CACHE_DIR"] == str(caller.home / ".cache" / "pip")
    assert caller.run(XDG_CACHE_HOME="/else/where").environment["PIP_CACHE_DIR"] == "/else/where/pip"


def test_a_caller_without_a_home(caller: Caller) -> None:
    done = subprocess.run([caller.program], env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (7, b"")
    assert caller.told().home == []
    assert "PIP_CACHE_DIR" not in caller.told().environment


# ── the README's command, and what CONTRIBUTING tells ──────────────────────────────


def test_it_is_the_command_of_the_readme() -> None:
    assert "\n    scripts/test\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "/../scripts/test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_variable_of_draftconv_is_explained() -> None:
    files = [path for room in ("draftconv", "scripts", "tests") for path in (ROOT / room).rglob("*") if path.is_file()]
    texts = [path.read_bytes().decode(errors="ignore") for path in files if path.suffix in ("", ".py", ".sh")]
    used = {name for text in texts for name in NAMES.findall(text)}
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(DRAFTCONV_[A-Z_]+)` \| (yes|no) \|", told, flags=re.MULTILINE))
    assert rows.keys() == used
    kept = set(NAMES.findall((ROOT / ".ci" / "run").read_text(encoding="utf-8")))
    assert {name for name, answer in rows.items() if answer == "yes"} == kept


def test_so_is_every_other_that_is_kept() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    kept = {word for line in lines if line.startswith("keep ") for word in line.split()[1:] if word.isidentifier()}
    assert {"PATH", "CI", "SSL_CERT_DIR", "all_proxy"} <= kept
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {name for name in kept if f"`{name}`" not in told} == set()
