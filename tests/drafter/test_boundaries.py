"""Layer ids: every engine's reading, and what neither can say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.drafter.boundaries import (
    default_triple,
    from_ids,
    sglang_captures,
    sglang_convention,
    sglang_ids,
    trtllm_ids,
    vllm_ids,
)
from draftconv.drafter.targets import FAMILIES, Family
from draftconv.errors import Refused, UsageError

FAMILY_NAMES: tuple[Family, ...] = ("llama", "deepseek", "gpt-oss", "minimax-m3-vl")


@given(st.integers(6, 200))
def test_default_triples(layers: int) -> None:
    triple = default_triple(layers)
    assert triple == (2, layers // 2, layers - 3)
    assert tuple(b - 1 for b in triple) == (1, layers // 2 - 1, layers - 4)
    for family in FAMILY_NAMES:
        moved = 1 if family == "minimax-m3-vl" else 0
        assert default_triple(layers, family, "sglang") == tuple(b + moved for b in triple)
        assert default_triple(layers, family, "vllm") == triple


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
def test_sglang_ids_are_read_back_as_the_same_boundaries(layers: int, family: Family, data: st.DataObject) -> None:
    boundaries = data.draw(lists(layers))
    try:
        ids = sglang_ids(boundaries, family, layers)
    except Refused as error:
        assert error.why
        assert error.cure
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
    assert sglang_captures(ids, family, layers) == tuple(boundaries)


def test_sglang_by_example() -> None:
    """sglang.md, section 4: for a 61-layer Kimi target [1, 29, 57] and [2, 30, 58] are the same capture."""
    assert sglang_captures([1, 29, 57], "deepseek", 61) == (2, 30, 58)
    assert sglang_captures([2, 30, 58], "deepseek", 61) == (2, 30, 58)
    assert sglang_captures([0, 29, 57], "deepseek", 61) == (29, 57)  # mis-read, and one state short
    assert sglang_captures([57, 29, 1], "deepseek", 61) == (1, 29, 57)  # the first listed id counts, not the least
    assert sglang_captures([1, 12, 24], "gpt-oss", 24) == (1, 12, 24)
    assert sglang_captures([1, 11, 23], "gpt-oss", 24) == (2, 12, 24)
    assert sglang_captures([1, 15, 31], "llama", 32) == (2, 16)  # boundary 32 is never delivered
    assert sglang_captures([-1, 15], "llama", 32) == (0, 16)
    assert sglang_captures([], "llama", 32) == ()
    assert sglang_ids([2, 30, 58], "deepseek", 61) == (2, 30, 58)
    assert sglang_ids([2, 16, 29], "llama", 32) == (1, 15, 28)
    assert sglang_ids([2, 12, 24], "gpt-oss", 24) == (2, 12, 24)
    assert sglang_ids([2, 12, 21], "gpt-oss", 24) == (1, 11, 20)


@given(st.integers(6, 80), st.data())
def test_without_a_family_only_what_every_family_reads_alike(layers: int, data: st.DataObject) -> None:
    boundaries = data.draw(lists(layers))
    try:
        ids = sglang_ids(boundaries, None, layers)
    except UsageError as error:
        assert boundaries[0] != 2 or layers in boundaries
        assert "--target" in error.cure
        return
    assert {sglang_captures(ids, family, layers) for family in FAMILY_NAMES} == {tuple(boundaries)}


def test_the_convention_of_an_unnamed_target() -> None:
    assert sglang_convention([1, 29, 57], None, None) == "after"
    assert sglang_convention([2, 30, 58], None, None) is None
    assert sglang_convention([2, 30, 58], "deepseek", 61) == "before"
    assert sglang_convention([2, 30, 58], "llama", 61) == "after"


@given(st.integers(4, 80), st.data())
def test_vllm_takes_boundaries_as_they_are(layers: int, data: st.DataObject) -> None:
    boundaries = data.draw(lists(layers))
    for family in (*FAMILY_NAMES, None):
        if boundaries[0] == 0 and family == "deepseek":
            with pytest.raises(Refused, match="crashes on boundary 0"):
                vllm_ids(boundaries, family)
        else:
            assert vllm_ids(boundaries, family) == tuple(boundaries)


@given(st.integers(4, 80), st.data())
def test_tensorrt_counts_the_layer_just_left(layers: int, data: st.DataObject) -> None:
    boundaries = data.draw(lists(layers))
    if boundaries[0] == 0:
        with pytest.raises(Refused, match="boundary 0"):
            trtllm_ids(boundaries)
    else:
        assert from_ids(trtllm_ids(boundaries), "after", layers) == tuple(boundaries)


def test_families_by_model_type() -> None:
    wanted = {"deepseek_v3": "deepseek", "kimi_k2": "deepseek", "kimi_k25": "deepseek", "glm4_moe_lite": "deepseek",
              "gpt_oss": "gpt-oss", "minimax_m3_vl": "minimax-m3-vl"}  # fmt: skip
    assert {name: FAMILIES[name] for name in wanted} == wanted
    assert "llama" not in FAMILIES  # a Llama-style drafter says nothing of its target
