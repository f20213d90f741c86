"""Who rounds the weights: what a backend does not have or lacks is refused before a weight is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftconv.api.quantize import prepare
from draftconv.conversion import backend_choice
from draftconv.conversion.backend_choice import choose_backend
from draftconv.engines.deployment import widest
from draftconv.errors import DraftconvError, Refused, UsageError
from draftconv.quantization import rounding
from draftconv.quantization.backends import modelopt, package, quark
from draftconv.quantization.recipes import MAIN, find_recipe
from tests import quantized

LLAMA = "llama-eagle3"


def refused(recipe: str, backend: str, trace: Path | None = None) -> DraftconvError:
    with pytest.raises(DraftconvError) as caught:
        prepare(quantized.source(LLAMA), quantized.options(LLAMA, recipe, trace=trace, backend=backend))
    return caught.value


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that start and are never called."""
    monkeypatch.setattr(backend_choice, "backend", lambda *_: rounding.quantize)
    monkeypatch.setattr(backend_choice, "installed", lambda name: f"{name} 1.0")


def decided(recipe: str, name: str, trace: Path | None = None) -> backend_choice.BackendChoice:
    found = find_recipe(recipe)
    return choose_backend(name, found, widest(found), trace, "cpu")


def test_native_changes_nothing() -> None:
    found = decided("w4a8-awq", "native", Path("trace"))
    assert found.parts[MAIN].rounds is rounding.quantize
    assert (found.package, found.smooths, found.notes) == (None, False, ())
    assert found.parts[MAIN].scheme == find_recipe("w4a8-awq").scheme


@pytest.mark.parametrize(
    ("recipe", "backend", "has"),
    [
        ("w4a8", "quark", "quark-w4a8"),
        ("fp8", "quark", "quark-w4a8"),
        ("w4a16-g128", "modelopt", "fp8, fp8-all, fp8-tensor, int8-all, w4a16-awq and w4a8-awq with --calibrate"),
        ("quark-w4a8", "modelopt", "fp8, fp8-all, fp8-tensor, int8-all, w4a16-awq and w4a8-awq with --calibrate"),
    ],
)
def test_what_a_backend_does_not_have_is_refused_with_what_it_has(recipe: str, backend: str, has: str) -> None:
    error = refused(recipe, backend)
    assert isinstance(error, Refused)
    assert error.cure == f"shipped recipes that it has: {has}; --backend native has every scheme"


@pytest.mark.parametrize(("recipe", "backend"), [("quark-w4a8", "quark"), ("fp8", "modelopt")])
def test_a_missing_package_is_told_before_any_work(
    recipe: str, backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(package, "find_spec", lambda _: None)
    quark.start.cache_clear()
    modelopt.start.cache_clear()
    error = refused(recipe, backend, tmp_path / "no trace is looked for")
    assert isinstance(error, UsageError)
    assert f"pip install 'draftconv[{backend}]'" in error.cure


def test_no_trace_is_told_before_a_package_is_imported() -> None:
    assert "--calibrate TRACE" in refused("fp8-tensor", "modelopt").cure


def test_awq_is_never_calibrated_on_nothing() -> None:
    error = refused("w4a16-awq", "modelopt")
    assert isinstance(error, UsageError)
    assert "--calibrate TRACE" in error.cure


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("recipe", ["w4a16-awq", "w4a8-awq"])
def test_modelopt_has_a_scale_rule_of_its_own_and_says_so(recipe: str) -> None:
    found = decided(recipe, "modelopt", Path("trace"))
    assert found.parts[MAIN].scheme.weights.scale_rule == "max/7"
    assert found.smooths
    assert "max/7 in place of mse" in found.notes[0]
    assert found.package == "modelopt 1.0"


@pytest.mark.usefixtures("packages")
def test_only_awq_is_smoothed() -> None:
    for recipe in ("fp8", "fp8-tensor", "quark-w4a8"):
        found = decided(recipe, "modelopt", Path("trace"))
        assert (found.smooths, found.notes, found.parts[MAIN].scheme) == (False, (), find_recipe(recipe).scheme)


def test_the_packages_round_on_a_cpu_only() -> None:
    recipe = find_recipe("quark-w4a8")
    with pytest.raises(UsageError, match="--backend quark on cuda"):
        choose_backend("quark", recipe, widest(recipe), None, "cuda")


def test_a_device_that_is_not_there_is_told_before_any_work() -> None:
    recipe = find_recipe("w4a16")
    with pytest.raises(UsageError, match="--device nowhere"):
        choose_backend("native", recipe, widest(recipe), None, "nowhere")
