"""What `convert` is told: determinism, shards, the record, and what it refuses; passes have their own tests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftconv.api.convert import ConvertOptions, convert, plan_conversion, prepare
from draftconv.api.inspect import inspect
from draftconv.api.verify import verify
from draftconv.checkpoint import open_checkpoint
from draftconv.errors import NotADrafter, Refused, UsageError, WriteError
from tests import tiny
from tests.api.conftest import Source
from tests.keywords import keywords
from tests.layouts.spelled import WRITABLE, document, on_disk, refusal, rows, start_for, stored
from tests.tiny import Tensor


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def left_behind(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


# ── the same input and options give the same bytes ─────────────────────────────────


@pytest.mark.parametrize("to", WRITABLE)
def test_same_bytes_from_another_place(to: str, tmp_path: Path) -> None:
    """Copies of source and target elsewhere, another working directory: every output file is the same."""
    outputs = []
    for place in ("one", "two/deeper"):
        room = tmp_path / place
        source = tiny.spell("llama", start_for(to)).write(room / "drafter")
        target = tiny.write_target(room / "target", max_position_embeddings=65536)
        options = ConvertOptions(to=to, target=str(target), dtype="float32", hash=True)
        convert(source, room / "out", **keywords(options))
        outputs.append(contents(room / "out"))
    assert outputs[0] == outputs[1]
    for name in ("config.json", "draftconv.json", "README.md"):
        assert str(tmp_path).encode() not in outputs[0][name]
        assert os.uname().nodename.encode() not in outputs[0][name]


@pytest.mark.parametrize(("embed", "to"), [("drop", "vllm"), ("from-target", "speculators")])
def test_no_path_is_told_by_a_table_of_the_target(embed: Any, to: str, source: Source, tmp_path: Path) -> None:
    target = tiny.write_target(tmp_path / "target")
    options = ConvertOptions(to=to, target=str(target), embed=embed)
    convert(source("torchspec-native", "llama"), tmp_path / "out", **keywords(options))
    for name in ("config.json", "draftconv.json", "README.md"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()
    assert document(tmp_path / "out", "draftconv.json")["target"]["name"] == "target"
    if to == "speculators":
        verifier = document(tmp_path / "out", "config.json")["speculators_config"]["verifier"]
        assert verifier["name_or_path"] is None
    assert "base_model" not in (tmp_path / "out" / "README.md").read_text()


def test_shards_hold_the_same_tensors(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    convert(path, whole, to="vllm")
    convert(path, cut, to="vllm", shard_size=30_000)
    index = document(cut, "model.safetensors.index.json")
    files = sorted(file.name for file in cut.glob("*.safetensors"))
    assert len(files) > 2
    assert files == [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    assert sorted(set(index["weight_map"].values())) == files
    assert on_disk(cut) == on_disk(whole)
    assert set(index["weight_map"]) == set(on_disk(whole))
    assert index["metadata"]["total_size"] == sum(len(tensor.data) for tensor in on_disk(whole).values())
    assert verify(cut, path).passed


@pytest.mark.parametrize("shards", [2, 5])
def test_a_sharded_source_gives_the_same_weights(shards: int, source: Source, tmp_path: Path) -> None:
    convert(source("torchspec-native", "reduced"), tmp_path / "one", to="sglang")
    convert(source("torchspec-native", "reduced", shards=shards), tmp_path / "many", to="sglang")
    assert on_disk(tmp_path / "one") == on_disk(tmp_path / "many")


# ── everything dropped is listed ───────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("producer", "to"),
    [
        (producer, to)
        for producer in ("specforge-hf", "angelslim", "modelopt-layers", "speculators")
        for to in WRITABLE
        if refusal(to, "reduced", tiny.spell("reduced", producer).facts) is None
    ],
)
def test_nothing_is_lost(to: str, producer: str, tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", producer)
    spelled.tensors["rotary_emb.inv_freq"] = tiny.floats("inv_freq", (8,), "F32")
    spelled.config |= {"an_unknown_key": {"deep": [1, None]}, "_name_or_path": "/home/someone/run"}
    path = spelled.write(tmp_path / "source")
    convert(path, tmp_path / "out", to=to)
    record = document(tmp_path / "out", "draftconv.json")
    assert record["source"]["config"] == spelled.config
    dropped = {row["what"] for row in record["changes"] if row["kind"] == "dropped"}
    assert all(row["why"] for row in record["changes"])
    written, config = on_disk(tmp_path / "out"), document(tmp_path / "out", "config.json")
    renamed = record["renamed"]
    canonical = {file: name for name, file in spelled.canonical.items()}
    for name in spelled.tensors:
        kept = renamed.get(name, name) in written
        assert kept or name in dropped or canonical.get(name) in dropped, name
    everywhere = set(keys_of(config))
    everywhere |= {"dtype", "torch_dtype"} if everywhere & {"dtype", "torch_dtype"} else set()  # one key's two names
    gone = {key for key, value in spelled.config.items() if key not in everywhere and not isinstance(value, dict)}
    assert {f"config.json: {key}" for key in gone} <= dropped
    assert "config.json: an_unknown_key" in dropped


def keys_of(config: dict[str, Any]) -> Iterator[str]:
    """Keys at any depth: what only moved is not lost."""
    for key, value in config.items():
        yield key
        if isinstance(value, dict):
            yield from keys_of(value)


def test_keys_of_sections_are_listed_too(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    spelled.config["eagle_config"] |= {"some_switch": True}
    conversion = convert(spelled.write(tmp_path / "source"), tmp_path / "out", to="vllm")
    assert "config.json: eagle_config.some_switch" in {change.what for change in conversion.changes}


# ── the record ─────────────────────────────────────────────────────────────────────


def test_the_record_names_its_parts(source: Source, tmp_path: Path) -> None:
    path = source("modelopt-layers", "frequency")
    convert(path, tmp_path / "out", to="specforge", hash=True)
    record = document(tmp_path / "out", "draftconv.json")
    assert list(record) == [
        "draftconv", "format", "layout", "source", "target", "licenses", "engines", "options", "facts", "reasons",
        "renamed", "changes", "made", "lm_head_order", "earlier", "findings", "warnings", "not_checked", "files",
        "output",
    ]  # fmt: skip
    assert record["layout"] == "specforge-hf"
    assert record["source"]["layout"] == "modelopt-layers"
    files = {row["name"]: row for row in record["source"]["files"]}
    weights = path / "model.safetensors"
    assert files["model.safetensors"] == {
        "name": "model.safetensors",
        "size": weights.stat().st_size,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    assert files["config.json"]["sha256"] == hashlib.sha256((path / "config.json").read_bytes()).hexdigest()
    order = record["lm_head_order"]
    assert [tiny.FREQUENCY[row] for row in order] == sorted(tiny.FREQUENCY)
    head = tiny.spell("frequency", "modelopt-layers").tensors["lm_head.weight"]
    assert on_disk(tmp_path / "out")["lm_head.weight"] == rows(head, order)


def test_without_hash_nothing_is_hashed(source: Source, tmp_path: Path) -> None:
    convert(source("torchspec-native", "llama"), tmp_path / "out", to="vllm", card=False)
    record = document(tmp_path / "out", "draftconv.json")
    assert all("sha256" not in row for row in record["source"]["files"])
    assert not (tmp_path / "out" / "README.md").exists()


def test_only_copied_values_were_not_looked_at(source: Source) -> None:
    path = source("torchspec-native", "f32")
    options = ConvertOptions(to="vllm")
    checkpoint = open_checkpoint(path)
    count = sum(tensor.dtype == "F32" for tensor in tiny.spell("f32", "torchspec-native").tensors.values())
    title = "NaN, infinity and all-zero tensors"
    plain = plan_conversion(checkpoint, options).not_made
    assert f"{title}: {count} tensors are copied as they are (inspect --deep reads them)" in plain
    cast = plan_conversion(checkpoint, replace(options, dtype="bfloat16")).not_made
    assert not any(check.startswith(title) for check in cast)


# ── refusals ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"to": "angelslim"}, "can be read, not written"),
        ({"to": "vlm"}, "unknown layout vlm"),
        ({"layout": "torchspce-native"}, "unknown layout"),
        ({"aux_convention": "during"}, "--aux-convention during"),
        ({"target": "kimi-k3000"}, "no such directory"),
        ({"dtype": "int4"}, "--dtype int4"),
        ({"repairs": ("d2t",)}, "no such repair"),
        ({"repairs": ("d2t-absolute",)}, "does not have that problem"),
        ({"repairs": ("d2t-absolute=x",)}, "takes no path"),
    ],
)
def test_wrong_options(options: dict[str, Any], reason: str, source: Source, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        convert(source("torchspec-native", "llama"), tmp_path / "out", **{"to": "vllm"} | options)
    assert left_behind(tmp_path) == []


def test_problems_of_severity_error_refuse(tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    spelled.put("d2t", tiny.integers([1000] * len(tiny.ASCENDING)))
    spelled.remove("norm.weight")
    with pytest.raises(Refused) as caught:
        convert(spelled.write(tmp_path / "source"), tmp_path / "out", to="vllm")
    assert "source: " in caught.value.what
    assert "[d2t-range]" in caught.value.what
    assert "tensor-missing" in caught.value.what
    assert left_behind(tmp_path) == ["source"]


def test_a_quantized_source_is_refused(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    name = spelled.file("layers.0.mlp.up_proj.weight")
    spelled.tensors[f"{name}_scale"] = tiny.floats("scale", (96,), "F32")
    spelled.config["quantization_config"] = {"quant_method": "quark"}
    with pytest.raises(Refused, match="this drafter is quantized"):
        convert(spelled.write(tmp_path / "source"), tmp_path / "out", to="vllm")


def test_the_engines_check_comes_before_writing(source: Source, tmp_path: Path) -> None:
    """A target with a longer context than asked for: SGLang would refuse to start."""
    target = tiny.write_target(tmp_path / "target", max_position_embeddings=262144)
    with pytest.raises(Refused, match="SGLang would not serve this drafter") as caught:
        convert(
            source("torchspec-native", "llama"), tmp_path / "out", to="sglang", max_positions=2048, target=str(target)
        )
    assert "max_position_embeddings" in caught.value.why
    assert left_behind(tmp_path) == ["target"]


@pytest.mark.parametrize("place", ["", "inside", ".."])
def test_source_and_output_must_not_overlap(place: str, tmp_path: Path) -> None:
    path = tiny.spell("llama", "torchspec-native").write(tmp_path / "room" / "drafter")
    before = contents(path)
    with pytest.raises(UsageError, match="the output"):
        convert(path, path / place if place != ".." else path.parent, overwrite=True, to="vllm")
    assert contents(path) == before


def test_the_output_must_not_be_the_target(source: Source, tmp_path: Path) -> None:
    target = tiny.write_target(tmp_path / "target")
    options = ConvertOptions(to="vllm", embed="from-target", target=str(target))
    with pytest.raises(UsageError, match="the output target is the source target"):
        prepare(source("torchspec-native", "llama"), options).write(target, overwrite=True)


def test_an_existing_directory_is_not_replaced(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(WriteError):
            convert(path, tmp_path / "out", overwrite=overwrite, to="vllm")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"
    convert(path, tmp_path / "ours", to="vllm")
    with pytest.raises(WriteError, match="exists already"):
        convert(path, tmp_path / "ours", to="sglang")
    convert(path, tmp_path / "ours", overwrite=True, to="sglang")
    assert document(tmp_path / "ours", "draftconv.json")["layout"] == "sglang"


def test_a_dry_run_writes_nothing(source: Source, tmp_path: Path) -> None:
    path = source("modelopt-layers", "frequency")
    before = contents(path)
    conversion = plan_conversion(open_checkpoint(path), ConvertOptions(to="specforge"))
    wanted = stored(tiny.spell("frequency", "modelopt-layers"), "specforge")
    assert {tensor.name for tensor in conversion.plan.tensors} == set(wanted)
    assert contents(path) == before
    assert left_behind(tmp_path) == []
    conversion.write(tmp_path / "out")
    assert sum(len(tensor.data) for tensor in on_disk(tmp_path / "out").values()) == conversion.plan.total_bytes


def test_not_a_drafter(tmp_path: Path) -> None:
    target = tiny.write_target(tmp_path / "target")
    with pytest.raises(NotADrafter):
        convert(target, tmp_path / "out", to="vllm")


# ── the deep checks on what is loaded anyway ───────────────────────────────────────


def spoil(tensor: Tensor, bits: int | None) -> Tensor:
    """One bad value in the middle, or all zeros."""
    if bits is None:
        return Tensor(tensor.dtype, tensor.shape, bytes(len(tensor.data)))
    values = np.frombuffer(tensor.data, tiny.BITS[tensor.dtype]).copy()
    values[values.size // 2] = bits
    return Tensor(tensor.dtype, tensor.shape, values.tobytes())


@pytest.mark.parametrize(
    ("bits", "reason"), [(0x7FC0, "NaN or infinity"), (0xFF80, "NaN or infinity"), (None, "all zeros")]
)
@pytest.mark.parametrize(
    ("variant", "producer", "name", "options"),
    [
        ("llama", "torchspec-native", "layers.0.mlp.up_proj.weight", {"to": "vllm", "dtype": "float32"}),
        ("llama", "torchspec-native", "norm.weight", {"to": "vllm", "dtype": "float32", "shard_size": 20_000}),
        ("frequency", "modelopt-layers", "lm_head.weight", {"to": "specforge"}),
        ("frequency", "modelopt-layers", "lm_head.weight", {"to": "specforge", "dtype": "float32"}),
    ],
)
def test_a_bad_value_that_is_loaded_stops_the_conversion(
    variant: str, producer: str, name: str, options: dict[str, Any], bits: int | None, reason: str, tmp_path: Path
) -> None:
    spelled = tiny.spell(replace(tiny.VARIANTS[variant], awkward=False), producer)
    spelled.put(name, spoil(spelled.tensors[spelled.file(name)], bits))
    path = spelled.write(tmp_path / "source")
    with pytest.raises(Refused, match=reason) as caught:
        convert(path, tmp_path / "out", **options)
    assert spelled.file(name) in caught.value.what
    assert "inspect --deep" in caught.value.cure
    assert left_behind(tmp_path) == ["source"]
    codes = {problem.code for problem in inspect(path, deep=True).problems}
    assert ("all-zero" if bits is None else "not-finite") in codes


def test_a_bad_value_that_is_copied_is_left_to_inspect(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    spelled.put("norm.weight", spoil(spelled.tensors["norm.weight"], 0x7FC0))
    path = spelled.write(tmp_path / "source")
    conversion = convert(path, tmp_path / "out", to="vllm")
    assert any("copied as they are" in check for check in conversion.not_made)
    assert on_disk(tmp_path / "out")["norm.weight"] == spelled.tensors["norm.weight"]


# ── options are one object ─────────────────────────────────────────────────────────


def test_the_record_echoes_the_options(source: Source, tmp_path: Path) -> None:
    options = ConvertOptions(to="vllm", dtype="bfloat16", max_positions=40000, shard_size=10**6)
    convert(source("torchspec-native", "llama"), tmp_path / "out", **keywords(options))
    echoed = document(tmp_path / "out", "draftconv.json")["options"]
    unsaid = {"overwrite", "progress", "layout"}
    said = {key: value for key, value in asdict(options).items() if key not in unsaid}
    assert echoed == {key: value for key, value in said.items() if value not in (None, ())} | {"dtype": "bf16"}


def test_a_malformed_record_is_ignored(source: Source, tmp_path: Path) -> None:
    convert(source("torchspec-native", "llama"), tmp_path / "out", to="vllm")
    good = document(tmp_path / "out", "draftconv.json")
    faults: tuple[dict[str, object], ...] = (
        {"changes": [{"kind": 1}]}, {"earlier": 3}, {"source": []}, {"made": {"a": 1}},
        {"lm_head_order": [0, 0]}, {"format": 2}, {"target": {"layers": "x"}},
    )  # fmt: skip
    for broken in faults:
        (tmp_path / "out" / "draftconv.json").write_text(json.dumps(good | broken))
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        convert(tmp_path / "out", tmp_path / "again", to="torchspec")
        assert document(tmp_path / "again", "draftconv.json")["earlier"] == []


def test_deep_reads_what_would_be_copied(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    healthy = spelled.write(tmp_path / "healthy")
    conversion = plan_conversion(open_checkpoint(healthy), ConvertOptions(to="vllm", deep=True))
    assert not any("copied as they are" in check for check in conversion.not_made)
    stored = spelled.tensors[spelled.file("norm.weight")]
    spelled.put("norm.weight", tiny.Tensor(stored.dtype, stored.shape, b"\xff" * len(stored.data)))
    broken = spelled.write(tmp_path / "broken")
    convert(broken, tmp_path / "unseen", to="vllm")
    with pytest.raises(Refused, match="not-finite"):
        convert(broken, tmp_path / "out", to="vllm", deep=True)
    assert not (tmp_path / "out").exists()
