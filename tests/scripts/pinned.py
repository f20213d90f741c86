"""A checkout with one more environment of pinned packages, made by a script of its own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from tests.scripts.test_venv import ROOT, Checkout

STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$STAND_IN_LOG"
case "$*" in
    "-m venv "*) rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
    *sysconfig*) echo "$(dirname "$STAND_IN_LOG")/packages" ;;
    {case}
esac
"""
"""Stands in for Python: records what is asked of it. `case`: what it does besides, fails if STAND_IN_FAILS is set."""


@dataclass
class PinnedCheckout(Checkout):
    """A checkout whose environment NAME is made by scripts/NAME-env, from the pins in scripts/NAME-constraints.txt.

    Attributes:
        case: a branch of the stand-in for Python.
    """

    name: str = ""
    case: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for file in (f"{self.name}-env", f"{self.name}-constraints.txt"):
            (self.path / "scripts" / file).write_bytes((ROOT / "scripts" / file).read_bytes())
        (self.path / "scripts" / f"{self.name}-env").chmod(0o755)
        self.add_program("python3.11", STAND_IN.replace("{case}", self.case))

    def make(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        (self.path / "log").write_text("")
        (self.path / "packages").mkdir(exist_ok=True)
        return subprocess.run(
            [self.path / "scripts" / f"{self.name}-env", self.path / self.name],
            env={"PATH": str(self.path / "bin"), "STAND_IN_LOG": str(self.path / "log"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def installed(self) -> list[str]:
        """What pip was told to install, in order."""
        return [line.split("-qq install ")[1] for line in self.log if " install " in line and "--dry-run" not in line]

    def pins_first(self) -> list[str]:
        """What it is to be told: torch first, then the list as it is."""
        pins = f"scripts/{self.name}-constraints.txt"
        return [
            f"--upgrade --constraint {pins} pip",
            "--no-deps torch==2.13.0+cpu",
            f"--constraint {pins} torch==2.13.0",
            f"--no-deps --requirement {pins}",
        ]
