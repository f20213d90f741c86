"""Hardware profiles: what is shipped runs where it says, and files that are wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.drafter.targets import known_targets
from draftconv.engines import parse_engine
from draftconv.engines.deployment import resolve
from draftconv.errors import FormerName, UsageError
from draftconv.live.profiles import find_profile, profile_names
from draftconv.quantization.recipes import find_recipe
from draftconv.report.verdict import GATES
from draftconv.traces.suites import suites
from tests.engines.views import LLAMA, MLA

SHIPPED = {
    "b200-sglang": ("sglang:b200", "w4a16", "compressed-pack"),
    "b200-trtllm": ("trtllm:b200", "w4a8-awq", "modelopt-awq"),
    "b200-vllm": ("vllm:b200", "w4a16", "compressed-pack"),
    "cpu-vllm": ("vllm:cpu", "w4a16", "compressed-pack"),
    "h200-vllm": ("vllm:h200", "w4a8-fp8", "compressed-pack"),
    "mi325x-sglang": ("sglang:mi325x", "fp8", "compressed-float"),
    "mi325x-vllm": ("vllm:mi325x", "w4a16", "compressed-pack"),
}


def test_what_is_shipped() -> None:
    assert profile_names() == tuple(SHIPPED)


@pytest.mark.parametrize("name", profile_names())
def test_the_recipe_of_a_profile_runs_on_its_engine_and_chip(name: str) -> None:
    profile = find_profile(name)
    engine, recipe, form = SHIPPED[name]
    assert (profile.engine, profile.recipe) == (engine, recipe)
    for facts in (LLAMA, MLA):
        found = resolve(find_recipe(recipe), parse_engine(engine), facts=facts)
        assert (found.format, found.executed) == (form, profile.executed)
    assert "ignores the activation scheme" not in profile.executed  # a recipe that claims less is the honest one


@pytest.mark.parametrize("name", profile_names())
def test_what_a_profile_names_exists(name: str) -> None:
    profile = find_profile(name)
    assert profile.target is None or profile.target in known_targets()
    assert all(asked.prompts in suites() for asked in profile.suites)
    assert profile.margins == {kind: gate.margin for (kind, how), gate in GATES.items() if how == "live"}
    assert profile.evidence == ("run" if name == "cpu-vllm" else "read")


# ── what was typed wins ────────────────────────────────────────────────────────────


def test_a_profile_fills_what_was_not_typed() -> None:
    told = find_profile("mi325x-sglang").options({})
    assert (told["engine"], told["target"], told["tensor_parallel_size"]) == ("sglang:mi325x", "kimi-k2.5", 8)
    assert (told["prompts"], told["limit"], told["max_tokens"]) == ("mt-bench", None, 256)
    assert told["server_args"] == ("--mem-fraction-static", "0.80")


def test_what_was_typed_wins() -> None:
    typed = {
        "engine": "sglang@0.5.20",
        "tensor_parallel_size": 4,
        "server_args": ("--dtype", "float16"),
        "num_speculative_tokens": 5,
    }
    told = find_profile("mi325x-sglang").options(typed)
    assert (told["engine"], told["tensor_parallel_size"], told["num_speculative_tokens"]) == (
        "sglang@0.5.20:mi325x",
        4,
        5,
    )
    assert told["server_args"] == ("--mem-fraction-static", "0.80", "--dtype", "float16")


@pytest.mark.parametrize(
    ("typed", "limit", "tokens"),
    [
        ({"prompts": "gsm8k"}, 100, 256),
        ({"prompts": "gsm8k", "limit": 3}, 3, 256),
        ({"prompts": "mine.jsonl"}, None, None),
        ({"max_tokens": 64}, None, 64),
    ],
)
def test_the_lengths_are_those_of_the_suite(typed: dict[str, object], limit: object, tokens: object) -> None:
    told = find_profile("b200-vllm").options(typed)
    assert (told.get("limit"), told.get("max_tokens")) == (limit, tokens)


@pytest.mark.parametrize("engine", ["sglang:b200", "vllm:mi325x"])
def test_another_engine_than_the_profiles(engine: str) -> None:
    with pytest.raises(UsageError, match=f"profile b200-vllm is for vllm:b200, not {engine}"):
        find_profile("b200-vllm").options({"engine": engine})


# ── files that are wrong ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        (
            "num_speculative_tokens: 3",
            "num_speculative_token: 3",
            "num_speculative_token is no key of a profile; num_speculative_tokens: field required.*mean num_spec",
        ),
        (
            "num_speculative_tokens: 3",
            "num_speculative_tokens: 0",
            "num_speculative_tokens: input should be greater than or equal to 1, not 0.*yaml is an example",
        ),
        ('"0.95"', "0.95", "server_args.\\d+: input should be a valid string, not 0.95"),
        ("environment: {}", "environment: {A-B: x}", "environment.A-B: string should match pattern .*, not 'A-B'"),
        ("limit: 100", "limt: 100", "suites.1.limt is no key of a profile.*did you mean limit"),
        ("4-bit: 0.02", "2-bit: 0.02", "margins.2-bit is no key of a profile"),
        ("4-bit: 0.02", "4-bit: 1.0", "margins.4-bit: input should be less than 1, not 1.0"),
        ("engine: vllm:b200", "engine: vllm", "engine: vllm names no hardware.*write it as vllm:HARDWARE"),
        ("engine: vllm:b200", "engine: onnx:b200", "unknown engine onnx"),
        ("recipe: w4a16", "recipe: w4a17", "no recipe is called w4a17.*did you mean w4a16"),
        ("recipe: w4a16", "recipe: w4a8-fp8", "recipe w4a8-fp8 has no form on vLLM on b200.*Hopper"),
        ("evidence: read", "evidence: guessed", "evidence: input should be 'run' or 'read', not 'guessed'"),
        ("num_speculative_tokens: 3", "num_speculative_tokens: 3\nnum_speculative_tokens: 4", "tokens is there twice"),
        ("suites:", "suites: [", "is not YAML: line"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, was: str, becomes: str, told: str) -> None:
    text = (Path(__file__).parents[2] / "recipes/profiles/b200-vllm.yaml").read_text()
    assert was in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace(was, becomes))
    with pytest.raises(UsageError) as caught:
        find_profile(str(file))
    error = caught.value
    assert "mine.yaml" in error.what
    assert re.search(told, f"{error.what}; {error.why}; {error.cure}", re.DOTALL)


def test_unknown_ones() -> None:
    with pytest.raises(UsageError, match="no profile is called b200-vlm") as caught:
        find_profile("b200-vlm")
    assert "b200-vllm" in caught.value.cure
    with pytest.raises(UsageError, match=r"profile nowhere\.yaml cannot be read"):
        find_profile("nowhere.yaml")


def bomb(levels: int) -> str:
    """A list that aliases make ten times as long per level."""
    lists = [f"&a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]" for n in range(levels)]
    return "environment:\n" + "".join(f"  A{n}: {text}\n" for n, text in enumerate(lists))


@pytest.mark.parametrize(
    ("text", "told"),
    [(bomb(7), "stands for more than"), ("[" * 2000, "is nested more than"), ("about: 2026-99-99", "is not YAML")],
)
def test_hostile_yaml_is_told_in_few_words(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=told) as caught:
        find_profile(str(file))
    assert len(caught.value.what) < 2000


@pytest.mark.parametrize(
    ("today", "former"), [("tensor_parallel_size", "tensor_parallel"), ("num_speculative_tokens", "depth")]
)
def test_a_former_key_works_and_says_so(tmp_path: Path, today: str, former: str) -> None:
    text = (Path(__file__).parents[2] / "recipes/profiles/b200-vllm.yaml").read_text()
    file, twice = tmp_path / "mine.yaml", tmp_path / "twice.yaml"
    file.write_text(text.replace(f"{today}:", f"{former}:"))
    with pytest.warns(FormerName, match=rf"mine.yaml: {former} is now {today};"):
        found = find_profile(str(file))
    shipped = find_profile("b200-vllm")
    assert replace(found, name=shipped.name) == shipped
    twice.write_text(f"{text}{former}: 3\n")
    with pytest.raises(UsageError, match=f"{former} and {today} are the same key"):
        find_profile(str(twice))
