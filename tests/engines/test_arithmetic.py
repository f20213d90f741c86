"""What an engine multiplies: never more than the file declares, and never silently less."""

from __future__ import annotations

import re

import pytest

from draftconv.drafter.facts import Gqa
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.arithmetic import Arithmetic, arithmetic
from draftconv.engines.deployment import resolve
from draftconv.engines.kernels import A16, FP8_TENSOR, FP8_TOKEN, INT8_TOKEN, Kernel
from draftconv.engines.offers import instead, offers
from draftconv.errors import Refused, Undecided
from draftconv.quantization.exclusions import select
from draftconv.quantization.recipes import find_recipe, recipe_names
from tests.engines.views import LLAMA, vary

KERNELS = [
    pytest.param(kernel, id=f"{name} {kernel.format} {kernel.inputs} {kernel.chips}")
    for name, engine in ENGINES.items()
    for kernel in engine.kernels
]
WIDE = vary(LLAMA, hidden=256, target_hidden=256, intermediate=256, attention=Gqa(heads=4, kv_heads=4, head_dim=64))


def found(recipe: str, spec: str) -> Arithmetic:
    """Of a drafter with sizes that every kernel takes."""
    chosen = find_recipe(recipe)
    return arithmetic(parse_engine(spec), chosen.scheme, chosen.format, None, WIDE, select(chosen, WIDE).quantized)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_words_of_a_kernel_say_what_it_multiplies(kernel: Kernel) -> None:
    """A row that multiplies 16 bit says so, and one that ignores what is declared says that."""
    assert kernel.weight_only == bool(re.search(r"ignores? the activation", kernel.executed))
    assert (kernel.multiplied is None) == kernel.executed.startswith(A16)
    assert not (kernel.weight_only and kernel.inputs is None)


@pytest.mark.parametrize(
    ("recipe", "spec", "inputs"),
    [
        ("w4a8", "vllm:b200", None),
        ("w4a8", "vllm:mi325x", None),
        ("w4a8", "vllm:cpu", INT8_TOKEN),
        ("w4a16", "vllm", None),
        ("w4a8-fp8", "vllm:h200", FP8_TOKEN),
        ("nvfp4", "vllm:h200", None),
        ("fp8", "sglang", FP8_TOKEN),
        ("fp8-tensor", "trtllm", FP8_TENSOR),
    ],
)
def test_what_is_multiplied(recipe: str, spec: str, inputs: object) -> None:
    assert found(recipe, spec).inputs == inputs


def test_hardware_that_is_not_named_and_decides() -> None:
    with pytest.raises(Undecided, match="depends on its hardware") as caught:
        found("w4a8", "vllm")
    assert "cpu: INT4 weights in bytes of 8 bits" in caught.value.why
    assert "vllm:b200" in caught.value.cure


def test_no_kernel_no_arithmetic() -> None:
    with pytest.raises(Refused, match="has no kernel for these weights"):
        found("w4a8", "sglang:b200")
    with pytest.raises(Refused, match="has no kernel for these weights"):
        found("w4a8", "sglang")


def test_sizes_that_a_kernel_does_not_take() -> None:
    chosen = find_recipe("w4a16")
    with pytest.raises(Refused, match="for some sizes") as caught:
        arithmetic(
            parse_engine("sglang:b200"), chosen.scheme, chosen.format, None, LLAMA, select(chosen, LLAMA).quantized
        )
    assert "are no multiple of" in caught.value.why


def test_another_release_is_told() -> None:
    assert any("0.25" in note and "not looked at" in note for note in found("w4a8", "vllm@0.25:b200").notes)
    assert not any("not looked at" in note for note in found("w4a8", "vllm:b200").notes)


# ── which recipe says what is multiplied ──────────────────────────────────────────


@pytest.mark.parametrize(
    ("recipe", "spec", "other"),
    [
        ("w4a8", "vllm:b200", "w4a16"),
        ("w4a8", "vllm:mi325x", "w4a16"),
        ("w4a16", "vllm:b200", ""),
        ("w4a8", "vllm:cpu", ""),
        ("w4a8-fp8", "vllm:h200", ""),
        ("nvfp4", "vllm:h200", ""),  # no shipped recipe has NVFP4 weights alone
    ],
)
def test_the_recipe_that_says_no_more_than_is_multiplied(recipe: str, spec: str, other: str) -> None:
    chosen, where = find_recipe(recipe), parse_engine(spec)
    assert instead(chosen, resolve(chosen, where), where, mla=False) == other


@pytest.mark.parametrize("spec", [f"{name}:{hardware}" for name in ENGINES for hardware in ENGINES[name].hardware])
def test_every_recipe_is_offered_or_refused(spec: str) -> None:
    runs, refused = offers(parse_engine(spec), [find_recipe(name) for name in recipe_names()])
    assert sorted([row.recipe for row in runs] + [row.recipe for row in refused]) == sorted(recipe_names())
    assert all(row.why and row.cure for row in refused)
    by_name = {row.recipe: row for row in runs}
    for row in runs:
        assert (row.activations == row.declared) or row.activations == "16 bit"
        if row.instead:
            other = by_name[row.instead]
            assert (other.activations, other.declared) == (row.activations, row.activations)
            assert other.instead == ""


def test_kinds_that_a_kernel_does_not_serve() -> None:
    runs, _ = offers(parse_engine("sglang:b200"), [find_recipe("nvfp4")])
    assert [row.not_for for row in runs] == ["MLA"]
    runs, _ = offers(parse_engine("vllm:cpu"), [find_recipe("fp8-tensor")])
    assert [row.not_for for row in runs] == ["Llama-style"]
