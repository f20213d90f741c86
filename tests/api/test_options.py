"""What `convert` is told: determinism, shards, casts, embeddings, positions, repairs, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftconv.api.convert import ConvertOptions, convert, plan_conversion, prepare
from draftconv.api.inspect import inspect
from draftconv.api.verify import verify
from draftconv.checkpoint import open_checkpoint
from draftconv.errors import DraftconvError, NotADrafter, Refused, UsageError, WriteError
from tests import tiny
from tests.api.conftest import Source
from tests.layouts.spelled import WRITABLE, document, on_disk, refusal, rows, stored
from tests.tiny import Tensor


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def left_behind(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


def start_for(to: str) -> str:
    """ModelOpt takes only what it trained itself."""
    return "modelopt-layers" if to == "modelopt" else "torchspec-native"


# ── the same input and options give the same bytes ─────────────────────────────────


@pytest.mark.parametrize("to", WRITABLE)
def test_same_bytes_from_another_place(to: str, tmp_path: Path) -> None:
    """Copies of source and target elsewhere, another working directory: every output file is the same."""
    outputs = []
    for place in ("one", "two/deeper"):
        room = tmp_path / place
        source = tiny.spell("llama", start_for(to)).write(room / "drafter")
        target = tiny.write_target(room / "target", max_position_embeddings=65536)
        options = ConvertOptions(to=to, target=str(target), dtype="f32", hash=True)
        convert(source, room / "out", options)
        outputs.append(contents(room / "out"))
    assert outputs[0] == outputs[1]
    for name in ("config.json", "draftconv.json", "README.md"):
        assert str(tmp_path).encode() not in outputs[0][name]
        assert os.uname().nodename.encode() not in outputs[0][name]


@pytest.mark.parametrize(("embed", "to"), [("drop", "vllm"), ("from-target", "speculators")])
def test_no_path_is_told_by_a_table_of_the_target(embed: Any, to: str, source: Source, tmp_path: Path) -> None:
    target = tiny.write_target(tmp_path / "target")
    options = ConvertOptions(to=to, target=str(target), embed=embed)
    convert(source("torchspec-native", "llama"), tmp_path / "out", options)
    for name in ("config.json", "draftconv.json", "README.md"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()
    assert document(tmp_path / "out", "draftconv.json")["target"]["name"] == "target"
    if to == "speculators":
        verifier = document(tmp_path / "out", "config.json")["speculators_config"]["verifier"]
        assert verifier["name_or_path"] == "target"
    assert "base_model" not in (tmp_path / "out" / "README.md").read_text()


def test_shards_hold_the_same_tensors(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    convert(path, whole, ConvertOptions(to="vllm"))
    convert(path, cut, ConvertOptions(to="vllm", shard_size=30_000))
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
    convert(source("torchspec-native", "reduced"), tmp_path / "one", ConvertOptions(to="sglang"))
    convert(source("torchspec-native", "reduced", shards=shards), tmp_path / "many", ConvertOptions(to="sglang"))
    assert on_disk(tmp_path / "one") == on_disk(tmp_path / "many")


# ── casts ──────────────────────────────────────────────────────────────────────────

NAMES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}


@pytest.mark.parametrize("variant", ["reduced", "mixed", "f16", "f32"])
@pytest.mark.parametrize("dtype", NAMES)
def test_floats_are_rounded_and_integers_are_not_touched(variant: str, dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    calm = replace(tiny.VARIANTS[variant], awkward=False)
    spelled = tiny.spell(calm, "torchspec-native")
    path = spelled.write(tmp_path / "source")
    convert(path, tmp_path / "out", ConvertOptions(to="torchspec", dtype=dtype))
    found = on_disk(tmp_path / "out")
    for name, tensor in spelled.tensors.items():
        if tensor.dtype in ("I64", "BOOL"):
            assert found[name] == tensor, name
        else:
            wanted = tiny.to_torch(tensor).to(tiny.TORCH[NAMES[dtype]])
            assert found[name].dtype == NAMES[dtype]
            assert found[name].data == wanted.contiguous().view(torch.uint8).numpy().tobytes(), name
    config = document(tmp_path / "out", "config.json")
    assert config["torch_dtype"] == tiny.NAMES[NAMES[dtype]]
    assert verify(tmp_path / "out", path).passed


def test_a_value_too_large_for_the_dtype_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="F16 cannot hold"):
        convert(source("torchspec-native", "llama"), tmp_path / "out", ConvertOptions(to="vllm", dtype="f16"))
    assert left_behind(tmp_path) == []


def test_int32_offsets_become_int64_and_say_so(tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    spelled.put("d2t", tiny.integers(spelled.tensors["d2t"].numpy(), "I32"))
    conversion = convert(spelled.write(tmp_path / "source"), tmp_path / "out", ConvertOptions(to="vllm"))
    assert on_disk(tmp_path / "out")["d2t"] == tiny.build(tiny.VARIANTS["reduced"])["d2t"]
    assert ("cast", "d2t") in {(change.kind, change.what) for change in conversion.changes}
    assert verify(tmp_path / "out", tmp_path / "source").passed


# ── embedding ──────────────────────────────────────────────────────────────────────


def test_drop_needs_proof(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    with pytest.raises(UsageError, match="needs the target's weights"):
        convert(path, tmp_path / "out", ConvertOptions(to="vllm", embed="drop"))
    other = tiny.floats("model.embed_tokens.weight", (tiny.VOCAB, 64), "BF16", seed=5)
    strange = tiny.write_target(tmp_path / "strange", tables={"model.embed_tokens.weight": other})
    with pytest.raises(Refused, match="is not the target's") as caught:
        convert(path, tmp_path / "out", ConvertOptions(to="vllm", embed="drop", target=str(strange)))
    assert "first in row 0" in caught.value.why
    assert left_behind(tmp_path) == ["strange"]


@pytest.mark.parametrize("force", [False, True])
def test_drop_leaves_the_table_to_the_target(force: bool, source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    target = None if force else str(tiny.write_target(tmp_path / "target"))
    conversion = convert(path, tmp_path / "out", ConvertOptions(to="vllm", embed="drop", force=force, target=target))
    wanted = stored(tiny.spell("llama", "torchspec-native"), "vllm")
    del wanted["embed_tokens.weight"]
    assert on_disk(tmp_path / "out") == wanted
    why = {change.what: change.why for change in conversion.changes}["embed_tokens.weight"]
    assert why == ("dropped without proof (--force)" if force else "bit-equal to the table of target")
    assert verify(tmp_path / "out", path).passed


def test_the_targets_table_is_attached(source: Source, tmp_path: Path) -> None:
    path = source("modelopt-layers", "llama")
    target = tiny.write_target(tmp_path / "target")
    options = ConvertOptions(to="vllm", embed="from-target", target=str(target))
    conversion = convert(path, tmp_path / "out", options)
    table = tiny.build(tiny.VARIANTS["llama"])["embed_tokens.weight"]
    assert on_disk(tmp_path / "out")["embed_tokens.weight"] == table
    assert conversion.drafter.facts.own_embedding is False
    assert verify(tmp_path / "out", path).passed
    made = document(tmp_path / "out", "draftconv.json")["made"]
    assert made == {"embed_tokens.weight": hashlib.sha256(table.data).hexdigest()}


@pytest.mark.parametrize(
    ("to", "variant", "options", "reason"),
    [
        ("vllm", "llama", {}, "needs --target"),
        ("vllm", "wide-target", {"target": "TARGET"}, "no embed_tokens of 160 x 64"),
        ("modelopt", "llama", {"target": "TARGET"}, "never stores embed_tokens"),
    ],
)
def test_a_table_that_cannot_be_attached_is_refused(
    to: str, variant: str, options: dict[str, Any], reason: str, source: Source, tmp_path: Path
) -> None:
    target = tiny.write_target(tmp_path / "target", tiny.VARIANTS[variant])
    chosen: dict[str, Any] = {key: str(target) for key in options}
    with pytest.raises(DraftconvError, match=reason):
        options_ = ConvertOptions(to=to, embed="from-target", **chosen)
        convert(source(start_for(to), variant), tmp_path / "out", options_)
    assert not (tmp_path / "out").exists()


def test_a_wide_targets_table_is_not_dropped(source: Source, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not as wide"):
        convert(source("torchspec-native", "wide-target"), tmp_path / "out",
                ConvertOptions(to="vllm", embed="drop", force=True))  # fmt: skip


# ── positions ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("asked", "target", "wanted"), [(None, None, 32768), (65536, None, 65536), (None, 262144, 262144),
                                    (4096, 262144, 4096), (None, 8192, 32768)]
)  # fmt: skip
def test_positions(asked: int | None, target: int | None, wanted: int, source: Source, tmp_path: Path) -> None:
    spec = str(tiny.write_target(tmp_path / "target", max_position_embeddings=target)) if target else None
    path = source("torchspec-native", "llama")
    options = ConvertOptions(to="torchspec", max_positions=asked, target=spec)
    if asked and target and asked < target:
        convert(path, tmp_path / "out", options)
    else:
        convert(path, tmp_path / "out", replace(options, to="vllm"))
    assert document(tmp_path / "out", "config.json")["max_position_embeddings"] == wanted
    assert verify(tmp_path / "out", path).passed


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
    convert(path, tmp_path / "out", ConvertOptions(to=to))
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
    gone = {f"config.json: {key}" for key in spelled.config if key not in config}
    assert gone <= dropped
    assert "config.json: an_unknown_key" in dropped


def test_keys_of_sections_are_listed_too(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    spelled.config["eagle_config"] |= {"some_switch": True}
    conversion = convert(spelled.write(tmp_path / "source"), tmp_path / "out", ConvertOptions(to="vllm"))
    assert "config.json: eagle_config.some_switch" in {change.what for change in conversion.changes}


# ── the record ─────────────────────────────────────────────────────────────────────


def test_the_record_names_its_parts(source: Source, tmp_path: Path) -> None:
    path = source("modelopt-layers", "frequency")
    convert(path, tmp_path / "out", ConvertOptions(to="torchspec", hash=True))
    record = document(tmp_path / "out", "draftconv.json")
    assert list(record) == [
        "draftconv", "format", "layout", "source", "target", "engines", "options", "facts", "reasons", "renamed",
        "changes", "made", "lm_head_order", "earlier", "findings", "warnings", "not_checked", "files", "output",
    ]  # fmt: skip
    assert record["layout"] == "torchspec-native"
    assert record["source"]["layout"] == "modelopt-layers"
    files = {row["name"]: row for row in record["source"]["files"]}
    weights = path / "model.safetensors"
    assert files["model.safetensors"] == {
        "name": "model.safetensors",
        "size": weights.stat().st_size,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    assert files["config.json"] == {"name": "config.json", "size": (path / "config.json").stat().st_size}
    order = record["lm_head_order"]
    assert [tiny.FREQUENCY[row] for row in order] == sorted(tiny.FREQUENCY)
    head = tiny.spell("frequency", "modelopt-layers").tensors["lm_head.weight"]
    assert on_disk(tmp_path / "out")["lm_head.weight"] == rows(head, order)


def test_without_hash_nothing_is_hashed(source: Source, tmp_path: Path) -> None:
    convert(source("torchspec-native", "llama"), tmp_path / "out", ConvertOptions(to="vllm", card=False))
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
    cast = plan_conversion(checkpoint, replace(options, dtype="bf16")).not_made
    assert not any(check.startswith(title) for check in cast)


# ── refusals ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"to": "angelslim"}, "can be read, not written"),
        ({"to": "vlm"}, "unknown layout vlm"),
        ({"source": "torchspce-native"}, "unknown layout"),
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
        convert(source("torchspec-native", "llama"), tmp_path / "out", ConvertOptions(**{"to": "vllm"} | options))
    assert left_behind(tmp_path) == []


def test_problems_of_severity_error_refuse(tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    spelled.put("d2t", tiny.integers([1000] * len(tiny.ASCENDING)))
    spelled.remove("norm.weight")
    with pytest.raises(Refused) as caught:
        convert(spelled.write(tmp_path / "source"), tmp_path / "out", ConvertOptions(to="vllm"))
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
        convert(spelled.write(tmp_path / "source"), tmp_path / "out", ConvertOptions(to="vllm"))


def test_the_engines_check_comes_before_writing(source: Source, tmp_path: Path) -> None:
    """A target with a longer context than asked for: SGLang would refuse to start."""
    target = tiny.write_target(tmp_path / "target", max_position_embeddings=262144)
    with pytest.raises(Refused, match="SGLang would not serve this drafter") as caught:
        convert(source("torchspec-native", "llama"), tmp_path / "out",
                ConvertOptions(to="sglang", max_positions=2048, target=str(target)))  # fmt: skip
    assert "max_position_embeddings" in caught.value.why
    assert left_behind(tmp_path) == ["target"]


@pytest.mark.parametrize("place", ["", "inside", ".."])
def test_source_and_output_must_not_overlap(place: str, tmp_path: Path) -> None:
    path = tiny.spell("llama", "torchspec-native").write(tmp_path / "room" / "drafter")
    before = contents(path)
    with pytest.raises(UsageError, match="the output"):
        convert(path, path / place if place != ".." else path.parent, ConvertOptions(to="vllm"), overwrite=True)
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
            convert(path, tmp_path / "out", ConvertOptions(to="vllm"), overwrite=overwrite)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"
    convert(path, tmp_path / "ours", ConvertOptions(to="vllm"))
    with pytest.raises(WriteError, match="exists already"):
        convert(path, tmp_path / "ours", ConvertOptions(to="sglang"))
    convert(path, tmp_path / "ours", ConvertOptions(to="sglang"), overwrite=True)
    assert document(tmp_path / "ours", "draftconv.json")["layout"] == "sglang"


def test_a_dry_run_writes_nothing(source: Source, tmp_path: Path) -> None:
    path = source("modelopt-layers", "frequency")
    before = contents(path)
    conversion = plan_conversion(open_checkpoint(path), ConvertOptions(to="torchspec"))
    wanted = stored(tiny.spell("frequency", "modelopt-layers"), "torchspec")
    assert {tensor.name for tensor in conversion.plan.tensors} == set(wanted)
    assert contents(path) == before
    assert left_behind(tmp_path) == []
    conversion.write(tmp_path / "out")
    assert sum(len(tensor.data) for tensor in on_disk(tmp_path / "out").values()) == conversion.plan.total_bytes


def test_not_a_drafter(tmp_path: Path) -> None:
    target = tiny.write_target(tmp_path / "target")
    with pytest.raises(NotADrafter):
        convert(target, tmp_path / "out", ConvertOptions(to="vllm"))


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
        ("llama", "torchspec-native", "layers.0.mlp.up_proj.weight", {"to": "vllm", "dtype": "f32"}),
        ("llama", "torchspec-native", "norm.weight", {"to": "vllm", "dtype": "f32", "shard_size": 20_000}),
        ("frequency", "modelopt-layers", "lm_head.weight", {"to": "torchspec"}),
        ("frequency", "modelopt-layers", "lm_head.weight", {"to": "torchspec", "dtype": "f32"}),
    ],
)
def test_a_bad_value_that_is_loaded_stops_the_conversion(
    variant: str, producer: str, name: str, options: dict[str, Any], bits: int | None, reason: str, tmp_path: Path
) -> None:
    spelled = tiny.spell(replace(tiny.VARIANTS[variant], awkward=False), producer)
    spelled.put(name, spoil(spelled.tensors[spelled.file(name)], bits))
    path = spelled.write(tmp_path / "source")
    with pytest.raises(Refused, match=reason) as caught:
        convert(path, tmp_path / "out", ConvertOptions(**options))
    assert spelled.file(name) in caught.value.what
    assert "inspect --deep" in caught.value.cure
    assert left_behind(tmp_path) == ["source"]
    codes = {problem.code for problem in inspect(path, deep=True).problems}
    assert ("all-zero" if bits is None else "not-finite") in codes


def test_a_bad_value_that_is_copied_is_left_to_inspect(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    spelled.put("norm.weight", spoil(spelled.tensors["norm.weight"], 0x7FC0))
    path = spelled.write(tmp_path / "source")
    conversion = convert(path, tmp_path / "out", ConvertOptions(to="vllm"))
    assert any("copied as they are" in check for check in conversion.not_made)
    assert on_disk(tmp_path / "out")["norm.weight"] == spelled.tensors["norm.weight"]


# ── repairs ────────────────────────────────────────────────────────────────────────


def repaired(spelled: tiny.Spelled, tmp_path: Path, *codes: str, to: str = "vllm") -> dict[str, Tensor]:
    """Refused without the repair, healthy with it, declared, and verified."""
    path = spelled.write(tmp_path / "source")
    bare = [code.partition("=")[0] for code in codes]
    problems = {problem.code: problem.severity for problem in inspect(path).problems}
    assert set(bare) <= problems.keys()
    if any(problems[code] == "error" for code in bare):
        with pytest.raises(Refused):
            convert(path, tmp_path / "out", ConvertOptions(to=to))
        assert not (tmp_path / "out").exists()
    convert(path, tmp_path / "out", ConvertOptions(to=to, repairs=codes))
    after = {problem.code for problem in inspect(tmp_path / "out", deep=True).problems}
    assert not after & set(bare)
    assert not [p for p in inspect(tmp_path / "out", deep=True).problems if p.severity == "error"]
    found = verify(tmp_path / "out", path)
    assert found.passed, found
    return on_disk(tmp_path / "out")


@pytest.mark.parametrize("to", ["vllm", "torchspec"])
def test_repair_absolute_d2t(to: str, tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    healthy = dict(spelled.tensors)
    spelled.put("d2t", tiny.integers(tiny.ASCENDING))
    found = repaired(spelled, tmp_path, "d2t-absolute", to=to)
    assert found["d2t"] == healthy["d2t"]
    assert found["lm_head.weight"] == healthy["lm_head.weight"]
    assert found.get("t2d", healthy["t2d"]) == healthy["t2d"]


def test_repair_absolute_d2t_in_frequency_order(tmp_path: Path) -> None:
    spelled = tiny.spell("frequency", "modelopt-layers")
    healthy = dict(spelled.tensors)
    spelled.put("d2t", tiny.integers(tiny.FREQUENCY))
    assert repaired(spelled, tmp_path, "d2t-absolute") == {
        name.replace("layers.0.", "midlayer."): tensor for name, tensor in healthy.items()
    }


def test_repair_t2d(tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    healthy = spelled.tensors["t2d"]
    mask = bytearray(healthy.data)
    mask[3] = 1
    spelled.put("t2d", Tensor("BOOL", healthy.shape, bytes(mask)))
    assert repaired(spelled, tmp_path, "d2t-t2d-mismatch", to="torchspec")["t2d"] == healthy


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_repair_float_d2t(dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    spelled = tiny.spell("reduced", "torchspec-native")
    healthy = spelled.tensors["d2t"]
    floats = torch.tensor(healthy.numpy()).to(tiny.TORCH[dtype])
    spelled.put("d2t", Tensor(dtype, healthy.shape, floats.view(torch.uint8).numpy().tobytes()))
    assert repaired(spelled, tmp_path, "d2t-dtype")["d2t"] == healthy


def test_rounded_offsets_are_not_repaired(tmp_path: Path) -> None:
    """Offsets above 256 in BF16, no t2d to confirm them: whole numbers, but nobody knows whether the right ones."""
    torch = pytest.importorskip("torch")
    ids = (0, 1, 600, 601, 602)
    base = tiny.VARIANTS["llama"]
    facts = replace(base.facts, vocab=700, draft_vocab=len(ids), vocab_order="ascending")
    spelled = tiny.spell(replace(base, facts=facts, ids=ids), "modelopt-layers")
    floats = torch.tensor(spelled.tensors["d2t"].numpy()).to(torch.bfloat16)
    spelled.put("d2t", Tensor("BF16", (len(ids),), floats.view(torch.uint8).numpy().tobytes()))
    with pytest.raises(Refused):
        convert(spelled.write(tmp_path / "source"), tmp_path / "out",
                ConvertOptions(to="vllm", repairs=("d2t-dtype",)))  # fmt: skip


def pruned_by_offset() -> tuple[tiny.Spelled, tiny.Spelled]:
    """TorchSpec's bug: rows of the full head taken at d2t instead of arange + d2t."""
    full, pruned = tiny.spell("llama", "torchspec-native"), tiny.spell("reduced", "torchspec-native")
    offsets = [int(offset) for offset in pruned.tensors["d2t"].numpy()]
    head = full.tensors["lm_head.weight"]
    size = len(head.data) // head.shape[0]
    data = b"".join(head.data[o * size : (o + 1) * size] for o in offsets)
    pruned.put("lm_head.weight", Tensor(head.dtype, (len(offsets), head.shape[1]), data))
    return full, pruned


def test_repair_a_head_pruned_by_offset(tmp_path: Path) -> None:
    full, pruned = pruned_by_offset()
    whole = full.write(tmp_path / "unpruned")
    found = repaired(pruned, tmp_path, f"head-pruned-by-offset={whole}")
    head = full.tensors["lm_head.weight"]
    size = len(head.data) // head.shape[0]
    assert found["lm_head.weight"].data == b"".join(head.data[i * size : (i + 1) * size] for i in tiny.ASCENDING)
    assert str(tmp_path) not in (tmp_path / "out" / "draftconv.json").read_text()


def test_a_head_is_not_rebuilt_from_another_drafter(tmp_path: Path) -> None:
    _, pruned = pruned_by_offset()
    path = pruned.write(tmp_path / "source")
    other = tiny.spell(replace(tiny.VARIANTS["llama"], seed=9), "torchspec-native").write(tmp_path / "other")
    for spec, error in (("", UsageError), (f"={other}", Refused), (f"={path}", Refused)):
        with pytest.raises(error):
            convert(path, tmp_path / "out",
                    ConvertOptions(to="vllm", repairs=(f"head-pruned-by-offset{spec}",)))  # fmt: skip


@pytest.mark.parametrize(("variant", "flag"), [("fc-norm", "fc_norm"), ("norm-before-fc", "norm_before_fc")])
def test_repair_a_missing_norm_flag(variant: str, flag: str, tmp_path: Path) -> None:
    spelled = tiny.spell(variant, "speculators")
    spelled.config[flag] = False
    repaired(spelled, tmp_path, "norm-without-flag")
    assert document(tmp_path / "out", "config.json")[flag] is True


def test_repair_unexpected_tensors(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    wanted = stored(spelled, "vllm")
    spelled.tensors["midlayer.surprise.weight"] = tiny.floats("surprise", (4,), "BF16")
    assert repaired(spelled, tmp_path, "tensor-unexpected") == wanted
    dropped = {row["what"] for row in document(tmp_path / "out", "draftconv.json")["changes"]}
    assert "midlayer.surprise.weight" in dropped


def test_repair_an_injected_rope(tmp_path: Path) -> None:
    spelled = tiny.spell("plain-rope", "modelopt-midlayer")
    spelled.config["rope_scaling"] = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}
    repaired(spelled, tmp_path, "rope-injected")
    assert "rope_scaling" not in document(tmp_path / "out", "config.json")


@pytest.mark.parametrize("to", ["vllm", "torchspec"])
def test_repair_a_double_norm(to: str, tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "modelopt-layers")
    found = repaired(spelled, tmp_path, "double-norm", to=to)
    prefix = "midlayer."
    outer = spelled.tensors["layers.0.input_layernorm.weight"].numpy().astype(np.float64)
    inner = spelled.tensors["layers.0.hidden_norm.weight"].numpy().astype(np.float64)
    folded = outer * inner / np.sqrt((outer**2).mean())
    got = found[f"{prefix}hidden_norm.weight"].numpy()
    assert np.abs(got - folded).max() <= np.abs(folded).max() * 2**-8
    assert found[f"{prefix}input_layernorm.weight"] == spelled.tensors["layers.0.input_layernorm.weight"]


def test_two_repairs_at_once(tmp_path: Path) -> None:
    spelled = tiny.spell("frequency", "modelopt-layers")
    spelled.put("d2t", tiny.integers(tiny.FREQUENCY))
    repaired(spelled, tmp_path, "d2t-absolute", "double-norm", to="torchspec")


# ── options are one object ─────────────────────────────────────────────────────────


def test_the_record_echoes_the_options(source: Source, tmp_path: Path) -> None:
    options = ConvertOptions(to="vllm", dtype="bf16", max_positions=40000, shard_size=10**6)
    convert(source("torchspec-native", "llama"), tmp_path / "out", options)
    echoed = document(tmp_path / "out", "draftconv.json")["options"]
    assert echoed == {key: value for key, value in asdict(options).items() if value not in (None, ())}


def test_a_malformed_record_is_ignored(source: Source, tmp_path: Path) -> None:
    convert(source("torchspec-native", "llama"), tmp_path / "out", ConvertOptions(to="vllm"))
    good = document(tmp_path / "out", "draftconv.json")
    faults: tuple[dict[str, object], ...] = (
        {"changes": [{"kind": 1}]}, {"earlier": 3}, {"source": []}, {"made": {"a": 1}},
        {"lm_head_order": [0, 0]}, {"format": 2}, {"target": {"layers": "x"}},
    )  # fmt: skip
    for broken in faults:
        (tmp_path / "out" / "draftconv.json").write_text(json.dumps(good | broken))
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        convert(tmp_path / "out", tmp_path / "again", ConvertOptions(to="torchspec"))
        assert document(tmp_path / "again", "draftconv.json")["earlier"] == []


def test_deep_reads_what_would_be_copied(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    healthy = spelled.write(tmp_path / "healthy")
    conversion = plan_conversion(open_checkpoint(healthy), ConvertOptions(to="vllm", deep=True))
    assert not any("copied as they are" in check for check in conversion.not_made)
    stored = spelled.tensors[spelled.file("norm.weight")]
    spelled.put("norm.weight", tiny.Tensor(stored.dtype, stored.shape, b"\xff" * len(stored.data)))
    broken = spelled.write(tmp_path / "broken")
    convert(broken, tmp_path / "unseen", ConvertOptions(to="vllm"))
    with pytest.raises(Refused, match="not-finite"):
        convert(broken, tmp_path / "out", ConvertOptions(to="vllm", deep=True))
    assert not (tmp_path / "out").exists()


def with_a_table(tmp_path: Path, target: str) -> Path:
    """A drafter of ModelOpt's that went to TorchSpec and got the target's table there."""
    path = tiny.spell("llama", "modelopt-layers").write(tmp_path / "trained")
    convert(path, tmp_path / "source", ConvertOptions(to="torchspec", embed="from-target", target=target))
    return tmp_path / "source"


def test_modelopt_does_not_drop_a_table_that_differs(tmp_path: Path) -> None:
    same = str(tiny.write_target(tmp_path / "same"))
    source = with_a_table(tmp_path, same)
    proven = convert(source, tmp_path / "proven", ConvertOptions(to="modelopt", target=same))
    assert any("bit-equal" in change.why for change in proven.changes)
    stored = on_disk(source)["embed_tokens.weight"]
    other = {"model.embed_tokens.weight": tiny.floats("other", stored.shape, stored.dtype)}
    target = str(tiny.write_target(tmp_path / "target", tables=other))
    with pytest.raises(Refused, match="not the target's"):
        convert(source, tmp_path / "out", ConvertOptions(to="modelopt", target=target))
    convert(source, tmp_path / "forced", ConvertOptions(to="modelopt", target=target, force=True))
    convert(source, str(tmp_path / "unknown"), ConvertOptions(to="modelopt"))


def test_a_targets_config_is_enough_where_no_table_is_compared(tmp_path: Path) -> None:
    target = tiny.write_target(tmp_path / "target")
    source = with_a_table(tmp_path, str(target))
    (target / "model.safetensors").unlink()
    found = convert(source, tmp_path / "out", ConvertOptions(to="modelopt", target=str(target)))
    assert any("not compared" in change.why for change in found.changes)
    with pytest.raises(UsageError, match="needs the target's weights"):
        convert(source, tmp_path / "other", ConvertOptions(to="vllm", embed="drop", target=str(target)))
