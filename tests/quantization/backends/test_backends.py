"""Backends by name: what is missing, what cannot start and what a package does not have is told before any work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from draftconv.errors import Refused, UsageError
from draftconv.quantization import rounding
from draftconv.quantization.backends import BACKENDS, backend, modelopt, package, quark
from draftconv.quantization.scheme import WeightScheme
from tests.quantization.backends.real import needs

QUARK = WeightScheme("int4", "channel", "max/7.5", "weight")
MODELOPT = WeightScheme("fp8", "channel", "max/448", "F32")
MSE = WeightScheme("int4", "channel", "mse", "weight")


def test_native_is_draftconv_s_own() -> None:
    assert backend("native", MSE) is rounding.quantize


def test_an_unknown_name_is_corrected() -> None:
    with pytest.raises(UsageError) as caught:
        backend("quarck", QUARK)
    assert caught.value.cure == "did you mean quark?"


@pytest.mark.parametrize("name", sorted(set(BACKENDS) - {"native"}))
def test_a_scheme_of_our_own_is_refused(name: str) -> None:
    with pytest.raises(Refused) as caught:
        backend(name, MSE)
    assert "mse" in caught.value.what
    assert "native" in caught.value.cure


@pytest.mark.parametrize(
    ("name", "scheme", "title"), [("quark", QUARK, "amd-quark"), ("modelopt", MODELOPT, "nvidia-modelopt")]
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, scheme: WeightScheme, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "find_spec", lambda _: None)
    quark.start.cache_clear()
    modelopt.start.cache_clear()
    with pytest.raises(UsageError, match=f"{title} is not installed") as caught:
        backend(name, scheme)
    assert f"pip install 'draftconv[{name}]'" in caught.value.cure


def broken(tmp_path: Path, package_name: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose import fails."""
    for name in [name for name in sys.modules if name.split(".")[0] == package_name]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / package_name).mkdir()
    (tmp_path / package_name / "__init__.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    quark.start.cache_clear()
    modelopt.start.cache_clear()


def test_without_a_compiler_quark_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path, "quark", "RuntimeError('JIT compilation failed.')", monkeypatch)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"there is no C\+\+ compiler \(no-such-compiler\)") as caught:
        backend("quark", QUARK)
    assert "g++" in caught.value.cure
    monkeypatch.setenv("CXX", "sh")  # one is there, so that is not what is wrong
    with pytest.raises(UsageError, match="amd-quark does not start: JIT compilation failed"):
        backend("quark", QUARK)


def test_a_package_that_lacks_another_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path, "modelopt", "ModuleNotFoundError('No module named omegaconf')", monkeypatch)
    with pytest.raises(UsageError, match="nvidia-modelopt does not start: No module named omegaconf"):
        backend("modelopt", MODELOPT)


def test_names_of_backends_need_no_torch() -> None:
    code = "import sys; from draftconv.quantization.backends import BACKENDS; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


class TestTheRealOne:
    pytestmark = needs("quark")

    def test_without_a_compiler(self, tmp_path: Path) -> None:
        """A PATH without one, and no extension compiled before."""
        tools = tmp_path / "bin"
        tools.mkdir()
        (tools / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
        code = (
            "from draftconv.errors import UsageError\n"
            "from draftconv.quantization.backends import quark\n"
            "try: quark.start()\n"
            "except UsageError as error: print(error.what)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PATH": str(tools), "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "amd-quark does not start: there is no C++ compiler (c++)\n"
