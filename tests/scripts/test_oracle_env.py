"""scripts/oracle-env: exactly the pinned packages, torch first, a compiler before anything, nothing done twice.

The stand-in for Python of `test_venv` records what is asked of it; no package index is touched.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.scripts.test_venv import ROOT, Checkout

PINS = ROOT / "scripts" / "oracle-constraints.txt"


class OracleCheckout(Checkout):
    """A checkout whose environment of quantizers is made in `oracle`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("oracle-env", "oracle-constraints.txt"):
            (self.path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
        (self.path / "scripts" / "oracle-env").chmod(0o755)
        self.add_program("uname", "#!/usr/bin/env bash\necho Linux\n")
        self.add_program("c++", "#!/usr/bin/env bash\n")

    def make(self, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.path / "log").write_text("")
        (self.path / "packages").mkdir(exist_ok=True)
        return subprocess.run(
            [self.path / "scripts" / "oracle-env", self.path / "oracle"],
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
    *quark.start*) echo "in $TORCH_EXTENSIONS_DIR" >>"$STAND_IN_LOG"; [ -z "${STAND_IN_FAILS:-}" ] ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> OracleCheckout:
    checkout = OracleCheckout(tmp_path)
    checkout.add_program("python3.11", STAND_IN)
    return checkout


def test_torch_comes_first_and_nothing_is_resolved(checkout: OracleCheckout) -> None:
    done = checkout.make()
    assert done.returncode == 0, done.stderr
    installed = [line for line in checkout.log if " install " in line and "--dry-run" not in line]
    assert [line.split("-qq install ")[1] for line in installed] == [
        "--upgrade --constraint scripts/oracle-constraints.txt pip",
        "--no-deps torch==2.13.0+cpu",
        "--constraint scripts/oracle-constraints.txt torch==2.13.0",
        "--no-deps --requirement scripts/oracle-constraints.txt",
    ]
    assert (checkout.path / "packages" / "draftconv.pth").read_text() == f"{checkout.path}\n"
    assert checkout.log[-1] == f"in {checkout.path}/oracle/extensions"


def test_the_second_run_does_nothing(checkout: OracleCheckout) -> None:
    checkout.make()
    done = checkout.make()
    assert (done.returncode, done.stderr, checkout.log) == (0, "", [])


def test_changed_pins_update_it_in_place(checkout: OracleCheckout) -> None:
    checkout.make()
    with (checkout.path / "scripts" / "oracle-constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert checkout.make().returncode == 0
    assert checkout.asked("--requirement")
    assert not checkout.asked("-m venv")


def test_an_extension_that_does_not_compile_starts_over(checkout: OracleCheckout) -> None:
    assert checkout.make(STAND_IN_FAILS="1").returncode != 0
    assert checkout.make().returncode == 0
    assert checkout.asked("-m venv --clear")


def test_without_a_compiler_nothing_is_made(checkout: OracleCheckout) -> None:
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
