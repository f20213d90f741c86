"""scripts/llmcompressor-env: exactly the pinned packages, torch first, nothing done twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scripts.pinned import PinnedCheckout
from tests.scripts.test_venv import ROOT

PINS = ROOT / "scripts" / "llmcompressor-constraints.txt"


@pytest.fixture
def checkout(tmp_path: Path) -> PinnedCheckout:
    return PinnedCheckout(tmp_path, name="llmcompressor")


def test_torch_comes_first_and_nothing_is_resolved(checkout: PinnedCheckout) -> None:
    done = checkout.make()
    assert done.returncode == 0, done.stderr
    assert checkout.installed() == checkout.pins_first()
    assert (checkout.path / "packages" / "draftconv.pth").read_text() == f"{checkout.path}\n"


def test_the_second_run_does_nothing(checkout: PinnedCheckout) -> None:
    checkout.make()
    done = checkout.make()
    assert (done.returncode, done.stderr, checkout.log) == (0, "", [])


def test_every_package_is_pinned_once() -> None:
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    names = [re.fullmatch(r"([\w.-]+)==[\w.]+", line) for line in lines]
    assert all(names), lines
    assert len({name[1].lower() for name in names if name}) == len(lines)
    assert {"llmcompressor==0.14.0.1", "compressed-tensors==0.19.0"} <= set(lines)
    torch = re.search(r"^torch==.*$", (ROOT / "scripts/oracle-constraints.txt").read_text(), re.MULTILINE)
    assert torch is not None
    assert torch[0] in lines
