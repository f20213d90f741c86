"""Synthetic checkpoints: the bits are decided by seed and name, the sizes are those of the real files."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_synthetic import ITEM_BYTES, SpecError, plan_files, read_spec, write_checkpoint
from safetensors import safe_open
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "scripts" / "specs"
TINY = json.loads((SPECS / "tiny-eagle3.json").read_text())

# Bytes of tensor data that the trainers' own configs give; where a model page quotes a figure ("6.0 GB",
# "3B params", "1.8*10^9"), these round to it.
EXACT_BYTES = {
    "kimi-k2.5-eagle3": 6_356_525_056,
    "kimi-k2.5-eagle3-mla": 6_031_208_448,
    "kimi-k2.6-eagle3-mla": 6_031_208_448,
    "kimi-k2.6-eagle3.1-mla": 6_031_251_456,
    "nvidia-kimi-k2.6-eagle3": 3_682_398_208,
}

# This project's spec -> the header spec of the same checkpoint among the shared reference data.
SHARED_SPECS = {
    "kimi-k2.5-eagle3": "kimi-k2.5-eagle3.torchspec-native",
    "kimi-k2.5-eagle3-mla": "kimi-k2.5-eagle3-mla.torchspec-native",
    "kimi-k2.6-eagle3-mla": "kimi-k2.6-eagle3-mla.torchspec-native",
    "kimi-k2.6-eagle3.1-mla": "kimi-k2.6-eagle3.1-mla.torchspec-native",
    "nvidia-kimi-k2.6-eagle3": "nvidia-kimi-k2.6-eagle3.modelopt-layers",
    "eagle3-kimik2.5-w4a8": "w4-k2.5-eagle3.hypothesis-fc-packed",
}


def load_spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((SPECS / f"{name}.json").read_text())
    return spec


def write_one(out: Path, **tensors: tuple[str, list[int]]) -> Path:
    rows = {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in tensors.items()}
    write_checkpoint({"config": {"vocab_size": 500}, "tensors": rows}, out)
    return out / "model.safetensors"


def test_same_seed_same_bytes_whatever_the_thread_count(tmp_path: Path) -> None:
    write_checkpoint(TINY, tmp_path / "a", seed=3, threads=1)
    write_checkpoint(TINY, tmp_path / "b", seed=3, threads=4)
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_another_seed_changes_every_tensor(tmp_path: Path) -> None:
    write_checkpoint(TINY, tmp_path / "a", seed=3)
    write_checkpoint(TINY, tmp_path / "b", seed=4)
    one, other = (load_file_as_bytes(tmp_path / name / "model.safetensors") for name in "ab")
    assert [name for name in one if one[name] == other[name]] == []


def load_file_as_bytes(path: Path) -> dict[str, bytes]:
    header_bytes = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + header_bytes])
    data = path.read_bytes()[8 + header_bytes :]
    return {name: data[slice(*row["data_offsets"])] for name, row in header.items() if name != "__metadata__"}


def test_values_depend_on_the_name_alone_not_on_neighbours_or_blocks(tmp_path: Path) -> None:
    # Two blocks and a bit: the value of an item must not depend on how the work was cut.
    items = (1 << 21) + 5
    alone = load_file(write_one(tmp_path / "alone", fc=("F16", [items])))
    among = load_file(write_one(tmp_path / "among", fc=("F16", [items]), other=("F16", [items])))
    assert np.array_equal(alone["fc"], among["fc"])
    assert not np.array_equal(among["fc"], among["other"])
    first, second = alone["fc"][: 1 << 20], alone["fc"][1 << 20 : 1 << 21]
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_floats_are_finite_and_of_the_size_their_name_promises(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / dtype / "model.safetensors"
    shape = {"dtype": dtype, "shape": [100_000]}
    tensors = {"fc.weight": shape, "norm.weight": shape, "fc_norm.0.weight": shape, "fc.weight_scale": shape}
    write_checkpoint({"config": {}, "tensors": tensors}, path.parent)
    with safe_open(path, "pt") as file:
        values = {name: file.get_tensor(name).float().numpy() for name in tensors}
    assert all(np.isfinite(value).all() for value in values.values())
    assert values["fc.weight"].std() == pytest.approx(0.02, rel=0.02)
    assert abs(values["fc.weight"].mean()) < 0.001
    for norm in ("norm.weight", "fc_norm.0.weight"):
        assert values[norm].mean() == pytest.approx(1.0, abs=0.001)
        assert values[norm].min() > 0.5
    assert values["fc.weight_scale"].min() > 0


def test_vocabulary_maps_agree_with_each_other(tmp_path: Path) -> None:
    tensors = load_file(write_one(tmp_path / "out", d2t=("I64", [120]), t2d=("BOOL", [500])))
    ids = np.arange(120) + tensors["d2t"]
    assert np.all(np.diff(ids) > 0), "ids ascend"
    assert np.array_equal(np.flatnonzero(tensors["t2d"]), ids)


def test_a_full_vocabulary_maps_to_itself(tmp_path: Path) -> None:
    tensors = load_file(write_one(tmp_path / "out", d2t=("I64", [500])))
    assert not tensors["d2t"].any()


def test_packed_words_use_all_their_bits(tmp_path: Path) -> None:
    words = load_file(write_one(tmp_path / "out", w=("I32", [4096])))["w"].view(np.uint32)
    assert np.bitwise_or.reduce(words) == 0xFFFFFFFF
    assert np.bitwise_and.reduce(words) == 0


def test_sparse_has_the_real_header_and_takes_no_room(tmp_path: Path) -> None:
    spec = load_spec("kimi-k2.5-eagle3")
    assert write_checkpoint(spec, tmp_path / "out", sparse=True) == EXACT_BYTES["kimi-k2.5-eagle3"]
    path = tmp_path / "out" / "model.safetensors"
    assert path.stat().st_size == plan_files(spec)[0].size
    assert path.stat().st_blocks * 512 < 1 << 20
    with safe_open(path, "np") as file:
        assert file.metadata() == spec["metadata"]
        shapes = {name: list(file.get_slice(name).get_shape()) for name in spec["tensors"]}
        assert sorted(file.keys()) == sorted(shapes)
    assert shapes == {name: row["shape"] for name, row in spec["tensors"].items()}


def test_sparse_keeps_the_vocabulary_maps(tmp_path: Path) -> None:
    write_checkpoint(TINY, tmp_path / "whole")
    write_checkpoint(TINY, tmp_path / "sparse", sparse=True)
    whole, sparse = (load_file_as_bytes(tmp_path / name / "model.safetensors") for name in ("whole", "sparse"))
    assert [name for name in whole if whole[name] == sparse[name]] == ["d2t", "t2d"]
    assert not any(sparse["fc.weight"])


def test_shards_come_with_an_index(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    others = [name for name in TINY["tensors"] if name != "lm_head.weight"]
    sharded = {**TINY, "files": {first: others, second: ["lm_head.weight"]}}
    write_checkpoint(TINY, tmp_path / "whole")
    total = write_checkpoint(sharded, tmp_path / "sharded")
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == total
    assert index["weight_map"] == {**dict.fromkeys(others, first), "lm_head.weight": second}
    parts = {
        **load_file_as_bytes(tmp_path / "sharded" / first),
        **load_file_as_bytes(tmp_path / "sharded" / second),
    }
    assert parts == load_file_as_bytes(tmp_path / "whole" / "model.safetensors")


def test_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="dtype F8_E4M3"):
        write_one(tmp_path / "a", fc=("F8_E4M3", [4]))
    with pytest.raises(SpecError, match="only d2t is I64"):
        write_one(tmp_path / "b", steps=("I64", [4]))
    with pytest.raises(SpecError, match="501 of 500"):
        write_one(tmp_path / "c", d2t=("I64", [501]))
    with pytest.raises(SpecError, match="exactly once"):
        write_checkpoint({**TINY, "files": {"model.safetensors": ["fc.weight"]}}, tmp_path / "d")
    (tmp_path / "e").mkdir()
    with pytest.raises(SpecError, match="exists already"):
        write_checkpoint(TINY, tmp_path / "e")


def test_a_failed_write_leaves_no_checkpoint_and_does_not_block_the_next(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="d2t holds"):
        write_one(tmp_path / "out", fc=("F16", [8]), d2t=("I64", [501]))
    assert not (tmp_path / "out").exists()
    assert write_one(tmp_path / "out", fc=("F16", [8])).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", EXACT_BYTES)
def test_specs_have_the_sizes_of_the_real_files(name: str) -> None:
    rows = load_spec(name)["tensors"].values()
    assert sum(math.prod(row["shape"]) * ITEM_BYTES[row["dtype"]] for row in rows) == EXACT_BYTES[name]


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.json")), ids=lambda path: path.stem)
def test_specs_are_consistent_with_their_config(path: Path) -> None:
    spec = load_spec(path.stem)
    config, tensors = spec["config"], spec["tensors"]
    shapes = {name: row["shape"] for name, row in tensors.items()}
    packed = 8 if tensors["fc.weight"]["dtype"] == "I32" else 1
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    layer = next(name for name in shapes if name.endswith("hidden_norm.weight")).removesuffix("hidden_norm.weight")

    assert spec["about"]
    assert shapes["fc.weight"] == [hidden, 3 * hidden // packed]
    draft_size = config.get("draft_vocab_size", config["vocab_size"])
    assert shapes["lm_head.weight"] == [draft_size, hidden]
    assert shapes.get("embed_tokens.weight", [config["vocab_size"], hidden]) == [config["vocab_size"], hidden]
    assert shapes[layer + "mlp.gate_proj.weight"] == [config["intermediate_size"], hidden // packed]
    assert shapes[layer + "mlp.down_proj.weight"] == [hidden, config["intermediate_size"] // packed]
    if "kv_lora_rank" in config:
        query = heads * (config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        key_value = heads * (config["qk_nope_head_dim"] + config["v_head_dim"])
        assert shapes[layer + "self_attn.q_b_proj.weight"] == [query, config["q_lora_rank"]]
        assert shapes[layer + "self_attn.kv_b_proj.weight"] == [key_value, config["kv_lora_rank"]]
        assert shapes[layer + "self_attn.o_proj.weight"] == [hidden, heads * config["v_head_dim"]]
    else:
        width = heads * config["head_dim"]
        assert shapes[layer + "self_attn.q_proj.weight"] == [width, 2 * hidden // packed]
        assert shapes[layer + "self_attn.o_proj.weight"] == [hidden, width // packed]
    assert ("fc_norm.0.weight" in shapes) == config.get("fc_norm", False)
    for name in shapes:
        if tensors[name]["dtype"] == "I32":
            assert shapes[name + "_scale"] == shapes[name][:1], "one scale per output channel"


@pytest.mark.parametrize("name", SHARED_SPECS)
def test_specs_agree_with_the_shared_reference_data(name: str) -> None:
    folder = Path(os.environ.get("DRAFTCONV_SHARED", ROOT.parent / "shared")) / "specs"
    if not folder.is_dir():
        pytest.skip("the shared reference data is not beside this checkout (nor at DRAFTCONV_SHARED)")
    assert load_spec(name)["tensors"] == json.loads((folder / f"{SHARED_SPECS[name]}.json").read_text())


def test_a_bare_header_is_a_spec(tmp_path: Path) -> None:
    header = {"norm.weight": {"dtype": "BF16", "shape": [8]}}
    (tmp_path / "header.json").write_text(json.dumps(header))
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    spec = read_spec(tmp_path / "header.json", tmp_path / "config.json")
    assert spec == {"config": {"hidden_size": 8}, "tensors": header}
    assert read_spec(tmp_path / "header.json") == {"config": {}, "tensors": header}
    (tmp_path / "header.json").write_text('{"shape": 3}')
    with pytest.raises(SpecError, match="neither a spec"):
        read_spec(tmp_path / "header.json")
