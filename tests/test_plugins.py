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
weights: {dtype: int4, granularity: channel, scale_rule: mse, scale_dtype: weight}
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
    steps = (("vllm", "source", "a"), ("toy-trainer", "a", "b"), ("vllm", "b", "c"), ("toy-trainer", "c", "d"))
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
    draftconv(environment, "verify", tmp_path / "a", "--against", source, "--target", target)
    tensors = on_disk(tmp_path / "a")
    assert tensors["midlayer.mlp.down_proj.qweight"].dtype == "I8"
    for form, before, after in (("compressed-pack", "a", "b"), ("toy", "b", "c")):
        draftconv(environment, "convert", tmp_path / before, tmp_path / after, "--pack", form, "--target", target)
    assert on_disk(tmp_path / "c") == tensors


def test_an_engine_is_written_and_quantized_for(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(RECIPE.replace("format: toy\n", ""))
    source, target = quantized.source(LLAMA), quantized.target(LLAMA).path
    assert target is not None

    def verdict(drafter: Path, engine: str, code: int) -> tuple[str, str]:
        done = run(environment, "-m", "draftconv", "inspect", drafter, "--for", engine, "--target", target,
                   "--format", "json")  # fmt: skip
        assert done.returncode == code, done.stderr
        (found,) = json.loads(done.stdout)["engines"]
        return found["status"], next((line["rule"] for line in found["lines"]), "")

    assert verdict(source, "toy", 1) == ("mis-read", "toy-missing")
    draftconv(environment, "convert", source, tmp_path / "a", "--to", "toy", "--target", target)
    assert verdict(tmp_path / "a", "toy", 0) == ("loads", "")
    draftconv(environment, "convert", tmp_path / "a", tmp_path / "b", "--to", "vllm", "--target", target)
    draftconv(environment, "convert", tmp_path / "b", tmp_path / "c", "--to", "toy", "--target", target)
    assert on_disk(tmp_path / "a") == on_disk(tmp_path / "c")

    chosen = ("--recipe", tmp_path / "own.yaml", "--target", target)
    draftconv(environment, "quantize", source, tmp_path / "q", *chosen, "--for", "toy:cpu")
    config = json.loads((tmp_path / "q/config.json").read_text())
    assert (config["_draftconv_layout"], config["quantization_config"]["quant_method"]) == ("toy", "toy")
    assert config["quantization_config"]["kept"] == ["fc", "lm_head"]
    assert verdict(tmp_path / "q", "toy:cpu", 0) == ("loads", "")
    config["quantization_config"]["kept"] = ["fc"]
    (tmp_path / "q/config.json").write_text(json.dumps(config))
    assert verdict(tmp_path / "q", "toy:cpu", 1) == ("mis-read", "toy-floats")


def test_what_an_engine_does_not_speak_of_is_undecided(environment: Mapping[str, str], tmp_path: Path) -> None:
    """INT4 of another method under the engine's own names: no rule is broken, and it does not load."""
    source, target = quantized.source(LLAMA), quantized.target(LLAMA).path
    assert target is not None
    draftconv(environment, "quantize", source, tmp_path / "v", "--recipe", "w4a16", "--target", target)
    to_toy = ("--to", "toy", "--target", target)
    draftconv(environment, "convert", tmp_path / "v", tmp_path / "d", "--dequantize", *to_toy)
    packed = (tmp_path / "v", tmp_path / "e", "--pack", "compressed-pack", *to_toy)
    done = run(environment, "-m", "draftconv", "convert", *packed)
    told = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert "Toy would not serve this drafter as it was trained (undecided)" in told
    assert "Weights are known as 16 bit, toy: stored as compressed-tensors [toy-uncovered; Toy 1.0]" in told


def test_an_engine_is_served_and_asked(environment: Mapping[str, str], tmp_path: Path) -> None:
    source, target = quantized.source(LLAMA), quantized.target(LLAMA).path
    assert target is not None
    for name in ("ref", "cand"):
        draftconv(environment, "convert", source, tmp_path / name, "--to", "toy", "--target", target)
    command = draftconv(environment, "serve", tmp_path / "ref", "--for", "toy", "--target", target, "--format", "json")
    argv = ["toy-serve", str(target), "--host", "127.0.0.1", "--draft", str(tmp_path / "ref"), "--steps", "3"]
    assert json.loads(command)["argv"] == argv
    for quality, code, said in ((0.7, 0, "equivalent"), (0.4, 1, "fail")):
        with toy.server(str(tmp_path / "ref")) as ref, toy.server(str(tmp_path / "cand"), quality) as cand:
            done = run(
                environment, "-m", "draftconv", "parity", tmp_path / "ref", tmp_path / "cand", "--for", "toy",
                "--target", target, "--prompts", toy.DOCS.parent / "tests/data/prompts.json", "--max-tokens", "32",
                "--run", tmp_path / f"run {code}", "--url-ref", ref, "--url-cand", cand,
            )  # fmt: skip
        assert (done.returncode, said in done.stdout) == (code, True), done.stderr
    assert "toy" in draftconv(environment, "parity", "--help").partition("--semantics [")[2].partition("]")[0]


def test_what_an_engine_does_not_have_is_told(environment: Mapping[str, str], tmp_path: Path) -> None:
    source, target = quantized.source(LLAMA), quantized.target(LLAMA).path
    common = (source, source, "--for", "toy", "--target", str(target), "--run", tmp_path / "run")
    for more in (("--offline",), ("--launch", "--also-speed")):
        done = run(environment, "-m", "draftconv", "parity", *common, *more)
        assert (done.returncode, "toy" in done.stderr.lower(), "Traceback" in done.stderr) == (2, True, False), (
            done.stderr
        )


def test_the_generated_pages_know_them(environment: Mapping[str, str]) -> None:
    done = run(environment, toy.DOCS.parent / "scripts/docs", "--check")
    assert done.returncode == 1
    names = ("boundaries", "cli", "engines", "formats", "layouts", "recipes")
    for page in (f"docs/{name}.md" for name in names):
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nowhere", "cannot be imported: ModuleNotFoundError"),
        ("ENGINE = 3", "is no Engine and no tuple of them"),
        ("from draftconv.engines.vllm import ENGINE", "brings vllm, and draftconv has one of that name"),
    ],
)
def test_an_engine_that_is_none_is_named(text: str, said: str, tmp_path: Path) -> None:
    entries = "[draftconv.engines]\ntoy = odd_package.engine:ENGINE\n"
    environment = toy.install(tmp_path / "site", entries, "odd-package", engine=text)
    done = run(environment, "-m", "draftconv", "serve", tmp_path, "--for", "vllm", "--target", "kimi-k2.5")
    assert done.returncode == 2
    assert f"package odd-package: odd_package.engine:ENGINE {said}" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


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
    there = run(environment, *command, "-k", "test_there_and_back and torchspec-native-reduced-toy-trainer")
    assert "1 passed" in there.stdout, there.stdout
    unknown = run(environment, *command, "-k", "test_somebody_wrote_down and toy-trainer")
    assert (
        "toy-trainer is writable, and nothing in tests/layouts/spelled.py says what it must look like" in unknown.stdout
    )
