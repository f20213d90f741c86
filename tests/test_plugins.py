"""A package that draftconv has never heard of: what it brings is found by every command, and refused under its name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import quantized, tiny, toy
from tests.layouts.spelled import on_disk

RECIPE = """\
about: INT4 as the toy trainer stores it
format: toy
weights: {grid: int4, per: channel, scale_rule: mse, scale_dtype: weight}
exclude: [embed, lm_head, fc, norms]
"""
LLAMA = "llama-eagle3-reduced"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return toy.install(tmp_path_factory.mktemp("site"))


def run(environment: Mapping[str, str], *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False
    )


def draftconv(environment: Mapping[str, str], *command: str | Path) -> str:
    done = run(environment, "-m", "draftconv", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_layout_is_detected_and_sent_there_and_back(environment: Mapping[str, str], tmp_path: Path) -> None:
    tiny.spell("reduced", "speculators").write(tmp_path / "source")
    steps = (("vllm", "source", "a"), ("toy", "a", "b"), ("vllm", "b", "c"), ("toy", "c", "d"))
    for to, before, after in steps:
        draftconv(environment, "convert", tmp_path / before, tmp_path / after, "--to", to, "--no-card")
    config = json.loads((tmp_path / "b/config.json").read_text())
    assert (config["toy_version"], config["_draftconv_layout"]) == (1, "toy-trainer")
    for one, other in (("a", "c"), ("b", "d")):
        assert on_disk(tmp_path / one) == on_disk(tmp_path / other)
        assert (tmp_path / one / "config.json").read_bytes() == (tmp_path / other / "config.json").read_bytes()
    assert "layers.0.mlp.up_proj.weight" in on_disk(tmp_path / "b")

    del config["_draftconv_layout"]
    (tmp_path / "b/config.json").write_text(json.dumps(config))
    found = json.loads(draftconv(environment, "inspect", tmp_path / "b", "--format", "json"))
    assert "toy-trainer" in json.dumps(found)
    assert "config.json has toy_version" in json.dumps(found)


def test_a_format_is_quantized_to_repacked_and_read(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(RECIPE)
    target = quantized.target(LLAMA).path
    assert target is not None
    assert "toy" in draftconv(environment, "recipes", tmp_path / "toy.yaml")
    source = quantized.source(LLAMA)
    chosen = ("--recipe", tmp_path / "toy.yaml", "--target", target)
    draftconv(environment, "quantize", source, tmp_path / "a", *chosen)
    draftconv(environment, "verify", tmp_path / "a", "--against", source)
    tensors = on_disk(tmp_path / "a")
    assert tensors["midlayer.mlp.down_proj.qweight"].dtype == "I8"
    for form, before, after in (("compressed-pack", "a", "b"), ("toy", "b", "c")):
        draftconv(environment, "convert", tmp_path / before, tmp_path / after, "--pack", form, "--target", target)
    assert on_disk(tmp_path / "c") == tensors


def test_the_generated_pages_know_them(environment: Mapping[str, str]) -> None:
    done = run(environment, toy.DOCS.parent / "scripts/docs", "--check")
    assert done.returncode == 1
    for page in ("docs/layouts.md", "docs/boundaries.md", "docs/formats.md"):
        assert page in done.stdout + done.stderr


def test_nothing_of_a_package_is_imported_to_start(environment: Mapping[str, str]) -> None:
    listing = "import sys, draftconv.cli; print('toy_trainer' in sys.modules)"
    assert run(environment, "-c", listing).stdout == "False\n"
    names = "import sys; from draftconv.quantization.recipes import format_names"
    listing = f"{names}; print(format_names()[-1], 'toy_trainer' in sys.modules)"
    assert run(environment, "-c", listing).stdout == "toy False\n"


@pytest.mark.parametrize(
    ("entry", "text", "said"),
    [
        ("layout:LAYOUTS", "import nowhere", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("layout:LAYOUTS", "", "cannot be imported: AttributeError"),
        ("layout:LAYOUTS", "LAYOUTS = ('toy',)", "is no Layout and no tuple of them"),
        ("layout:LAYOUTS", "LAYOUTS = 3", "is no Layout and no tuple of them"),
        ("layout:LAYOUTS", "from draftconv.layouts.quark import LAYOUTS", "brings quark-native, and draftconv has"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(entry: str, text: str, said: str, tmp_path: Path) -> None:
    entries = f"[draftconv.layouts]\ntoy = odd_package.{entry}\n"
    environment = toy.install(tmp_path / "site", entries, "odd-package", layout=text)
    tiny.spell("llama", "speculators").write(tmp_path / "source")
    done = run(environment, "-m", "draftconv", "inspect", tmp_path / "source")
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert f"package odd-package: odd_package.{entry} {said}" in told
    assert "uninstall odd-package" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("toy = 3", "is no Format and no tuple of them"),
        ("from draftconv.quantization.formats.gptq import gptq as toy", "brings something else than toy"),
    ],
)
def test_a_format_that_is_none_is_named(text: str, said: str, tmp_path: Path) -> None:
    entries = "[draftconv.formats]\ntoy = odd_package.format:toy\n"
    environment = toy.install(tmp_path / "site", entries, "odd-package", format=text)
    code = "from draftconv.quantization.formats import formats; formats()"
    assert f"package odd-package: odd_package.format:toy {said}" in run(environment, "-c", code).stderr


def test_two_packages_of_one_name(tmp_path: Path) -> None:
    for name in ("toy-trainer", "toy-trainer-two"):
        module = name.replace("-", "_")
        toy.install(
            tmp_path, f"[draftconv.layouts]\n{name} = {module}.layout:LAYOUTS\n", name,
            layout=toy.example("layouts.md"),
        )  # fmt: skip
    code = "from draftconv.layouts import layouts; layouts()"
    told = run({"PYTHONPATH": str(tmp_path)}, "-c", code).stderr
    assert "package toy-trainer-two: toy_trainer_two.layout:LAYOUTS brings toy-trainer, and toy-trainer has" in told


def test_the_suites_send_it_there_and_back(environment: Mapping[str, str]) -> None:
    """And they fail by its name where nobody wrote down what it looks like."""
    suites = [toy.DOCS.parent / "tests" / suite for suite in ("api/test_round_trip.py", "layouts/test_writing.py")]
    command: tuple[str | Path, ...] = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *suites)
    there = run(environment, *command, "-k", "test_there_and_back and torchspec-native-reduced-toy")
    assert "1 passed" in there.stdout, there.stdout
    unknown = run(environment, *command, "-k", "test_somebody_wrote_down and toy")
    assert "toy is writable, and nothing in tests/layouts/spelled.py says what it must look like" in unknown.stdout
