"""Layer ids: what each way of counting makes of them, and what it cannot say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.drafter.boundaries import (
    default_triple,
    family_captures,
    family_convention,
    family_ids,
    from_ids,
)
from draftconv.drafter.targets import FAMILIES, Family
from draftconv.errors import Refused, UsageError

FAMILY_NAMES: tuple[Family, ...] = ("llama", "deepseek", "gpt-oss", "minimax-m3-vl")


@given(st.integers(6, 200))
def test_default_triples(layers: int) -> None:
    triple = default_triple(layers)
    assert triple == (2, layers // 2, layers - 3)
    assert tuple(b - 1 for b in triple) == (1, layers // 2 - 1, layers - 4)


@given(st.integers(1, 100), st.data())
def test_ids_from_the_end(layers: int, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(-layers, layers - 1), min_size=1, max_size=5))
    absolute = [i % layers for i in ids]
    assert from_ids(ids, "before", layers) == tuple(absolute)
    assert from_ids(ids, "after", layers) == tuple(i + 1 for i in absolute)
    if min(ids) < 0:
        with pytest.raises(UsageError) as caught:
            from_ids(ids, "after", None)
        assert "--target-layers" in caught.value.cure


def lists(layers: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, layers), unique=True, min_size=1, max_size=5).map(sorted)


@given(st.integers(4, 80), st.sampled_from(FAMILY_NAMES), st.data())
def test_ids_by_family_are_read_back_as_the_same_boundaries(layers: int, family: Family, data: st.DataObject) -> None:
    boundaries = data.draw(lists(layers))
    try:
        ids = family_ids(boundaries, family, layers, "an engine")
    except Refused as error:
        assert error.what.startswith("an engine cannot capture")
        assert error.why
        # what reference table 3 says it cannot express, and nothing else
        last, first = layers in boundaries, boundaries[0]
        match family:
            case "deepseek":
                assert first in (0, 1) or last
            case "gpt-oss":
                assert first == 0 and not last
            case _:
                assert last
        return
    assert family_captures(ids, family, layers) == tuple(boundaries)


def test_sglang_by_example() -> None:
    """sglang.md, section 4: for a 61-layer Kimi target [1, 29, 57] and [2, 30, 58] are the same capture."""
    assert family_captures([1, 29, 57], "deepseek", 61) == (2, 30, 58)
    assert family_captures([2, 30, 58], "deepseek", 61) == (2, 30, 58)
    assert family_captures([0, 29, 57], "deepseek", 61) == (0, 29, 57)
    assert family_captures([57, 29, 1], "deepseek", 61) == (1, 29, 57)  # the first listed id counts, not the least
    assert family_captures([1, 12, 24], "gpt-oss", 24) == (1, 12, 24)
    assert family_captures([1, 11, 23], "gpt-oss", 24) == (2, 12, 24)
    assert family_captures([1, 15, 31], "llama", 32) == (2, 16)  # boundary 32 is never delivered
    assert family_captures([-1, 15], "llama", 32) == (0, 16)
    assert family_captures([], "llama", 32) == ()
    assert family_ids([2, 30, 58], "deepseek", 61, "SGLang") == (2, 30, 58)
    assert family_ids([0, 30, 58], "deepseek", 61, "SGLang") == (0, 30, 58)
    assert family_ids([2, 16, 29], "llama", 32, "SGLang") == (1, 15, 28)
    assert family_ids([2, 12, 24], "gpt-oss", 24, "SGLang") == (2, 12, 24)
    assert family_ids([2, 12, 21], "gpt-oss", 24, "SGLang") == (1, 11, 20)


@pytest.mark.parametrize(
    ("boundaries", "family", "layers", "what"),
    [
        ([1, 29, 57], "deepseek", 61, "boundary 1 first"),
        ([2, 30, 61], "deepseek", 61, "boundary 61,"),
        ([0, 12, 20], "gpt-oss", 24, "boundary 0 on"),
        ([2, 16, 32], "llama", 32, "boundary 32,"),
    ],
)
def test_what_a_family_cannot_capture_by_example(boundaries: list[int], family: Family, layers: int, what: str) -> None:
    with pytest.raises(Refused, match=f"SGLang cannot capture {what}"):
        family_ids(boundaries, family, layers, "SGLang")


@given(st.integers(6, 80), st.data())
def test_without_a_family_only_what_every_family_reads_alike(layers: int, data: st.DataObject) -> None:
    boundaries = data.draw(lists(layers))
    try:
        ids = family_ids(boundaries, None, layers, "an engine")
    except UsageError as error:
        assert boundaries[0] != 2 or layers in boundaries
        assert "--target" in error.cure
        return
    assert {family_captures(ids, family, layers) for family in FAMILY_NAMES} == {tuple(boundaries)}


def test_the_convention_of_an_unnamed_target() -> None:
    assert family_convention([1, 29, 57], None, None) == "after"
    assert family_convention([2, 30, 58], None, None) is None
    assert family_convention([2, 30, 58], "deepseek", 61) == "before"
    assert family_convention([2, 30, 58], "llama", 61) == "after"


def test_families_by_model_type() -> None:
    wanted = {"deepseek_v3": "deepseek", "kimi_k2": "deepseek", "kimi_k25": "deepseek", "glm4_moe_lite": "deepseek",
              "gpt_oss": "gpt-oss", "minimax_m3_vl": "minimax-m3-vl"}  # fmt: skip
    assert {name: FAMILIES[name] for name in wanted} == wanted
    assert "llama" not in FAMILIES  # a Llama-style drafter says nothing of its target
