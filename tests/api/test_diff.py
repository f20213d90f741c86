"""`diff`: spelling alone is no difference of facts or tensors; everything else is named with both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.api.convert import convert
from draftconv.api.diff import Difference, diff
from tests import tiny
from tests.api.conftest import Source
from tests.tiny import Tensor


def test_a_drafter_does_not_differ_from_itself(source: Source) -> None:
    path = source("torchspec-native", "mla-3.1")
    found = diff(path, path)
    assert found.none
    assert (found.facts, found.tensors, found.config) == ((), (), ())


def test_another_spelling_differs_in_the_config_only(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "3.1")
    convert(path, tmp_path / "out", to="trtllm")
    found = diff(path, tmp_path / "out")
    assert (found.facts, found.tensors) == ((), ())
    config = {row.what: (row.left, row.right) for row in found.config}
    assert config["_torchspec_version"] == ("0.1.0", "")
    assert config["norm_before_residual"] == ("", "false")
    assert config["sliding_window"] == ("null", "")
    assert config["rope_parameters"] == ("", '{"rope_type": "default", "rope_theta": 50000.0}')


def test_another_run_differs_in_values(tmp_path: Path) -> None:
    for seed in (0, 1):
        variant = replace(tiny.VARIANTS["reduced"], seed=seed)
        tiny.spell(variant, "torchspec-native").write(tmp_path / str(seed))
    found = diff(tmp_path / "0", tmp_path / "1")
    assert (found.facts, found.config) == ((), ())
    floats = {name for name in tiny.build(tiny.VARIANTS["reduced"]) if name not in ("d2t", "t2d")}
    assert {row.what for row in found.tensors} == floats
    assert all("other values from row 0" in row.right for row in found.tensors if row.what != "fc.weight")


def test_the_first_different_row_is_named(tmp_path: Path) -> None:
    left, right = tiny.spell("llama", "torchspec-native"), tiny.spell("llama", "torchspec-native")
    name = left.file("layers.0.mlp.up_proj.weight")
    data = bytearray(left.tensors[name].data)
    data[64 * 2 * 41 + 5] ^= 1
    right.tensors[name] = Tensor("BF16", left.tensors[name].shape, bytes(data))
    found = diff(left.write(tmp_path / "a"), right.write(tmp_path / "b"))
    assert found.tensors == (
        Difference("layers.0.mlp.up_proj.weight", "BF16 [96, 64]", "BF16 [96, 64], other values from row 41"),
    )


@pytest.mark.parametrize(("variant", "dtype", "equal"), [("llama", "float32", True), ("f32", "bfloat16", False)])
def test_a_cast_says_whether_values_are_equal(variant: str, dtype: str, equal: bool, tmp_path: Path) -> None:
    calm = replace(tiny.VARIANTS[variant], awkward=False)
    path = tiny.spell(calm, "torchspec-native").write(tmp_path / "a")
    convert(path, tmp_path / "b", to="torchspec", dtype=dtype)
    rows = {row.what: row.right for row in diff(path, tmp_path / "b").tensors}
    assert set(rows) == set(tiny.build(calm))
    assert {"equal values" in right for right in rows.values()} == {equal}


def test_maps_scales_and_absent_tensors(tmp_path: Path) -> None:
    left, right = tiny.spell("reduced", "torchspec-native"), tiny.spell("reduced", "torchspec-native")
    other = tiny.maps((*tiny.ASCENDING[:-1], tiny.VOCAB - 2), tiny.VOCAB)
    right.put("d2t", other["d2t"]).put("t2d", other["t2d"]).remove("embed_tokens.weight")
    right.config["vocab_size"] = tiny.VOCAB
    right.tensors[right.file("layers.0.mlp.up_proj.weight") + "_scale"] = tiny.floats("s", (96,), "F32")
    found = diff(left.write(tmp_path / "a"), right.write(tmp_path / "b"))
    rows = {row.what: (row.left, row.right) for row in found.tensors}
    assert rows["d2t"][1].endswith("other values")
    assert rows["t2d"][1].endswith("other values")
    assert rows["embed_tokens.weight"] == ("BF16 [160, 64]", "")
    assert rows["layers.0.mlp.up_proj.weight_scale"] == ("", "F32 [96]")
    assert "own_embedding" in {row.what for row in found.facts}


def test_facts_are_told_in_words(source: Source) -> None:
    found = diff(source("torchspec-native", "llama"), source("torchspec-native", "yarn"))
    (row,) = found.facts
    assert row.what == "rope"
    assert row.left == "theta 50000.0, pairs halves, kind default, scaling {}"
    assert "kind yarn" in row.right
    found = diff(source("torchspec-native", "llama"), source("torchspec-native", "mla"))
    rows = {row.what: row for row in found.facts}
    assert rows["attention"].left.startswith("heads 4, kv_heads 2, head_dim 16")
