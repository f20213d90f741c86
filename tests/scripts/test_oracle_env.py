"""scripts/oracle-env: exactly the pinned packages, torch first, a compiler before anything, nothing done twice.

The stand-in for Python of `test_venv` records what is asked of it; no package index is touched.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.scripts.pinned import PinnedCheckout
from tests.scripts.test_venv import ROOT

PINS = ROOT / "scripts" / "oracle-constraints.txt"

CASE = '*quark.start*) echo "in $TORCH_EXTENSIONS_DIR" >>"$STAND_IN_LOG"; [ -z "${STAND_IN_FAILS:-}" ] ;;'


@pytest.fixture
def checkout(tmp_path: Path) -> PinnedCheckout:
    checkout = PinnedCheckout(tmp_path, name="oracle", case=CASE)
    checkout.add_program("c++", "#!/usr/bin/env bash\n")
    return checkout


def test_torch_comes_first_and_nothing_is_resolved(checkout: PinnedCheckout) -> None:
    done = checkout.make()
    assert done.returncode == 0, done.stderr
    assert checkout.installed() == checkout.pins_first()
    assert (checkout.path / "packages" / "draftconv.pth").read_text() == f"{checkout.path}\n"
    assert checkout.log[-1] == f"in {checkout.path}/oracle/extensions"


def test_the_second_run_does_nothing(checkout: PinnedCheckout) -> None:
    checkout.make()
    done = checkout.make()
    assert (done.returncode, done.stderr, checkout.log) == (0, "", [])


def test_changed_pins_update_it_in_place(checkout: PinnedCheckout) -> None:
    checkout.make()
    with (checkout.path / "scripts" / "oracle-constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert checkout.make().returncode == 0
    assert checkout.asked("--requirement")
    assert not checkout.asked("-m venv")


def test_an_extension_that_does_not_compile_starts_over(checkout: PinnedCheckout) -> None:
    assert checkout.make(STAND_IN_FAILS="1").returncode != 0
    assert checkout.make().returncode == 0
    assert checkout.asked("-m venv --clear")


def test_without_a_compiler_nothing_is_made(checkout: PinnedCheckout) -> None:
    done = checkout.make(CXX="no-such-compiler")
    assert done.returncode == 2
    assert "there is no C++ compiler (no-such-compiler)" in done.stderr
    assert "scripts/test tests" in done.stderr
    assert checkout.log == []


def test_every_package_is_pinned_once_and_within_the_extras() -> None:
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    pins = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    versions = {pin[1].lower().replace("_", "-"): pin[2] for pin in pins if pin}
    assert len(versions) == len(lines)
    assert {"pip", "pytest", "pytest-xdist", "torch", "transformers", "compressed-tensors"} <= set(versions)
    assert "draftconv" not in versions
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("quark", "modelopt"):
        name, lowest, below = re.fullmatch(r"([\w-]+)>=([\d.]+),<([\d.]+)", extras[extra][0]).groups()  # type: ignore[union-attr]
        assert versions[name].startswith(lowest)
        assert not versions[name].startswith(below)
