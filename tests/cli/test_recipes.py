"""`draftconv recipes`: what there is, and what of it runs where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftconv.engines import ENGINES
from draftconv.live.profiles import profile_names
from draftconv.quantization.recipes import recipe_names
from draftconv.traces.suites import suites
from tests.cli.conftest import Run

CELLS = [f"{engine}:{hardware}" for engine in ENGINES for hardware in ENGINES[engine].hardware]


def flat(text: str) -> str:
    return " ".join(text.split())


def test_all_of_them(run: Run) -> None:
    done = run("recipes")
    assert (done.exit_code, done.stderr) == (0, "")
    for name in recipe_names():
        assert f" {name} " in flat(done.stdout)
    told = json.loads(run("recipes", "--format", "json").stdout)
    assert [row["name"] for row in told["recipes"]] == list(recipe_names())
    assert all(row["about"] and row["scheme"].startswith("weights ") for row in told["recipes"])
    assert [row["name"] for row in told["profiles"]] == list(profile_names())
    assert [row["name"] for row in told["suites"]] == list(suites())


@pytest.mark.parametrize("name", profile_names())
def test_one_profile(run: Run, name: str) -> None:
    told = json.loads(run("recipes", name, "--format", "json").stdout)
    assert (told["name"], told["suites"][0]["prompts"]) == (name, "mt-bench")
    said = flat(run("recipes", name).stdout)
    assert told["engine"] in said
    assert ("not run on hardware" in said) == (name != "cpu-vllm")


def test_one_suite(run: Run) -> None:
    assert json.loads(run("recipes", "mt-bench", "--format", "json").stdout)["count"] == 80
    assert "Suite mt-bench" in run("recipes", "mt-bench").stdout


def test_a_profile_of_ones_own(run: Run, tmp_path: Path) -> None:
    shipped = (Path(__file__).parents[2] / "recipes" / "profiles" / "b200-vllm.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(shipped.replace("tokens: 3", "tokens: 5"))
    told = json.loads(run("recipes", "mine.yaml", "--format", "json").stdout)
    assert (told["name"], told["depth"]) == ("mine", 5)


def test_the_list_says_what_is_written_for_every_engine_and_hardware(run: Run) -> None:
    listed = json.loads(run("recipes", "--format", "json").stdout)["recipes"]
    told = {row["name"]: row["formats"] for row in listed}
    for name, formats in told.items():
        assert [f"{engine}:{hardware}" for engine in formats for hardware in formats[engine]] == CELLS
        one = json.loads(run("recipes", name, "--format", "json").stdout)
        assert [row["format"] for row in one["engines"]] == [form for row in formats.values() for form in row.values()]
    assert told["w4a8"]["vllm"]["cpu"] == "compressed-int"
    assert told["w4a8"]["sglang"] == dict.fromkeys(ENGINES["sglang"].hardware, "")
    said = flat(run("recipes").stdout)
    assert "What is written for whom" in said
    assert said.count("no form") >= len(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_one_on_every_engine_and_hardware(run: Run, name: str) -> None:
    told = json.loads(run("recipes", name, "--format", "json").stdout)
    assert told["name"] == name
    assert [row["engine"] for row in told["engines"]] == CELLS
    for row in told["engines"]:
        assert row["told"].startswith("no form: ") == (row["format"] == "")
        assert row["format"] or "--recipe " in row["told"]


def test_a_person_reads_what_runs(run: Run) -> None:
    said = flat(run("recipes", "w4a8").stdout)
    assert "Recipe w4a8" in said
    assert "Where it runs" in said
    assert "embed, lm_head, fc, norms" in said


def test_quiet_says_nothing(run: Run) -> None:
    for words in ((), ("w4a8",)):
        done = run("recipes", *words, "--quiet")
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_a_file_of_ones_own(run: Run, tmp_path: Path) -> None:
    shipped = (Path(__file__).parents[2] / "recipes" / "w4a16.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(shipped)
    mine, theirs = (json.loads(run("recipes", name, "--format", "json").stdout) for name in ("mine.yaml", "w4a16"))
    assert mine["name"] == "mine"
    assert [row["format"] for row in mine["engines"]] == [row["format"] for row in theirs["engines"]]


def test_unknown_ones_are_met_with_known_ones(run: Run) -> None:
    done = run("recipes", "w4a9")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no recipe, profile or suite is called w4a9" in flat(done.stderr)
    assert "w4a8" in done.stderr


@pytest.mark.parametrize(
    "text", ["[" * 5000, "about: 2020-99-99", f"weights: {{group: {'9' * 5000}}}", "a: [1", "\x00", "a: &a [*a]"]
)
def test_a_file_that_yaml_cannot_hold_is_told_in_a_line(text: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    result = run("recipes", "./mine.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ./mine.yaml")
    assert "fault of draftconv" not in result.stderr


# ── for an engine ─────────────────────────────────────────────────────────────────


def test_what_runs_on_an_engine_and_what_is_multiplied(run: Run) -> None:
    told = json.loads(run("recipes", "--for", "vllm:b200", "--format", "json").stdout)
    runs, refused = ({row["recipe"]: row for row in told[part]} for part in ("runs", "refused"))
    assert sorted([*runs, *refused]) == sorted(recipe_names())
    w4a8 = runs["w4a8"]
    assert (w4a8["weights"], w4a8["activations"]) == ("INT4 per channel", "16 bit")
    assert (w4a8["declared"], w4a8["instead"]) == ("INT8 per token, dynamic", "w4a16")
    assert (w4a8["engine"], w4a8["format"], w4a8["evidence"]) == ("vllm@0.33.0:b200", "compressed-pack", "read")
    assert "Hopper only" in refused["w4a8-fp8"]["why"]
    said = flat(run("recipes", "--for", "vllm:b200").stdout)
    assert said.index("What runs on vllm@0.33.0:b200") < said.index("What does not run on vllm@0.33.0:b200")
    assert "INT4 per channel x 16 bit" in said
    assert "not run on hardware" in said
    assert "is ignored: take w4a16" in said


def test_several_engines_and_one_recipe(run: Run) -> None:
    words = ("recipes", "w4a8", "--for", "vllm:mi325x", "--for", "vllm:cpu", "--for", "sglang:b200")
    told = json.loads(run(*words, "--format", "json").stdout)
    assert [(row["engine"].partition(":")[2], row["activations"]) for row in told["runs"]] == [
        ("mi325x", "16 bit"), ("cpu", "INT8 per token, dynamic")
    ]  # fmt: skip
    assert [row["recipe"] for row in told["refused"]] == ["w4a8"]
    assert "not run on hardware" not in flat(run("recipes", "w4a8", "--for", "vllm:cpu").stdout)
    every = json.loads(run("recipes", "w4a8", "--for", "vllm", "--format", "json").stdout)
    machines = [row["engine"].partition(":")[2] for row in every["runs"]]
    assert machines == list(ENGINES["vllm"].hardware)


def test_a_profile_is_for_one_engine_already(run: Run) -> None:
    done = run("recipes", "b200-vllm", "--for", "vllm")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--for is about recipes, b200-vllm is a profile" in flat(done.stderr)
    assert run("recipes", "--for", "vlm").exit_code == 2
