"""scripts/trainer-env: exactly the pinned packages, torch first, nothing resolved and nothing done twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scripts.pinned import PinnedCheckout
from tests.scripts.test_venv import ROOT

PINS = ROOT / "scripts" / "trainer-constraints.txt"
TRAINERS = {"speculators", "specforge", "nvidia-modelopt", "nemo-automodel", "angelslim"}


@pytest.fixture
def checkout(tmp_path: Path) -> PinnedCheckout:
    return PinnedCheckout(tmp_path, name="trainer")


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
    pins = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    versions = {pin[1].lower().replace("_", "-"): pin[2] for pin in pins if pin}
    assert len(versions) == len(lines)
    assert {"pip", "torch", "transformers", *TRAINERS} <= set(versions)
    assert "draftconv" not in versions
