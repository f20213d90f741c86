"""`verify` passes on every conversion (test_convert.py) and fails on any change to one: bits, names, facts, records."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.quantize import quantize
from draftconv.api.verify import Verification, verify
from tests import tiny
from tests.api.conftest import Source
from tests.keywords import evidence, keywords
from tests.layouts.spelled import WRITABLE, document, on_disk
from tests.tiny import Tensor

KEY = "eagle_aux_hidden_state_layer_ids"


def offsets_in_file(path: Path) -> dict[str, tuple[int, int]]:
    """Tensor name → its byte range in model.safetensors."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    return {
        name: (8 + size + row["data_offsets"][0], 8 + size + row["data_offsets"][1])
        for name, row in header.items()
        if name != "__metadata__"
    }


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


def rewrite(path: Path, tensors: dict[str, Tensor]) -> None:
    """The same directory with other tensors, by the safetensors library."""
    with safe_open(path / "model.safetensors", "np") as opened:
        metadata = opened.metadata()
    save_file({name: tiny.to_torch(t) for name, t in tensors.items()}, path / "model.safetensors", metadata=metadata)


def edit(path: Path, change: Callable[[dict[str, Any]], None], name: str = "config.json") -> None:
    found = document(path, name)
    change(found)
    (path / name).write_text(json.dumps(found, indent=2))


def different(found: Verification) -> set[str]:
    return {row.what for row in (*found.tensors, *found.facts, *found.directory) if row.outcome == "different"}


# ── bits ───────────────────────────────────────────────────────────────────────────

FLIPPED: list[tuple[str, str, dict[str, Any]]] = [
    ("torchspec-native", "reduced", {"to": "speculators"}),
    ("torchspec-native", "llama", {"to": "vllm"}),
    ("torchspec-native", "llama", {"to": "specforge"}),
    ("torchspec-native", "llama", {"to": "vllm", "dtype": "float32"}),
    ("modelopt-layers", "frequency", {"to": "specforge"}),
    ("modelopt-layers", "frequency", {"to": "specforge", "dtype": "float32"}),
    ("modelopt-layers", "llama", {"to": "vllm", "embed": "from-target"}),
    ("modelopt-layers", "llama", {"to": "vllm", "repairs": ("double-norm",)}),
    ("torchspec-native", "mla-3.1", {"to": "portable"}),
    ("speculators", "three-layers-qk-norm", {"to": "vllm"}),
]


@pytest.mark.parametrize("record", ["with", "without"])
@pytest.mark.parametrize(
    ("producer", "variant", "options"),
    FLIPPED,
    ids=[f"{p}-{v}-{'-'.join(map(str, o.values()))}" for p, v, o in FLIPPED],
)
def test_one_flipped_bit_in_any_tensor_fails(
    producer: str, variant: str, options: dict[str, Any], record: str, source: Source, tmp_path: Path
) -> None:
    path, out = source(producer, variant), tmp_path / "out"
    target = str(tiny.write_target(tmp_path / "target"))
    chosen = ConvertOptions(**options, target=target if "embed" in options else None, max_positions=32768)
    convert(path, out, **keywords(chosen))
    if record == "without":
        (out / "draftconv.json").unlink()
    else:
        assert verify(out, path, **evidence(chosen)).passed
    weights = out / "model.safetensors"
    for name, (start, stop) in offsets_in_file(weights).items():
        for at, bit in ((start, 0), ((start + stop) // 2, 7), (stop - 1, 6)):
            flip(weights, at, bit)
            assert verify(out, path, **evidence(chosen)).result == "fail", (name, at)
            flip(weights, at, bit)
    if record == "with":
        assert verify(out, path, **evidence(chosen)).passed


def test_a_flipped_bit_in_an_added_bias_fails(tmp_path: Path) -> None:
    from tests.api.test_convert import portable_spelling

    base = tiny.VARIANTS["llama"]
    variant = replace(base, facts=replace(base.facts, attention=tiny.gqa(qkv_bias=True)))
    path = portable_spelling(variant).write(tmp_path / "source")
    convert(path, tmp_path / "out", to="trtllm")
    start, stop = offsets_in_file(tmp_path / "out" / "model.safetensors")["midlayer.self_attn.o_proj.bias"]
    for at in (start, stop - 1):
        flip(tmp_path / "out" / "model.safetensors", at, 7)
        assert not verify(tmp_path / "out", path).passed
        flip(tmp_path / "out" / "model.safetensors", at, 7)
    assert verify(tmp_path / "out", path).passed


@pytest.mark.parametrize("to", ["vllm", "specforge"])
def test_swapped_head_rows_fail(to: str, source: Source, tmp_path: Path) -> None:
    """Both rows are there, one place off: the map no longer says what the head means."""
    path, out = source("modelopt-layers", "frequency"), tmp_path / "out"
    convert(path, out, to=to)
    tensors = on_disk(out)
    head = tensors["lm_head.weight"]
    size = len(head.data) // head.shape[0]
    data = head.data[size : 2 * size] + head.data[:size] + head.data[2 * size :]
    rewrite(out, tensors | {"lm_head.weight": Tensor(head.dtype, head.shape, data)})
    assert different(verify(out, path)) == {"lm_head.weight"}


@pytest.mark.parametrize("record", ["with", "without"])
def test_a_consistent_permutation_means_the_same(record: str, source: Source, tmp_path: Path) -> None:
    """Rows and map moved together: another file, the same drafter."""
    path, out = source("torchspec-native", "reduced"), tmp_path / "out"
    convert(path, out, to="vllm")
    tensors = on_disk(out)
    order = list(reversed(range(len(tiny.ASCENDING))))
    head = tensors["lm_head.weight"]
    size = len(head.data) // head.shape[0]
    moved = Tensor(head.dtype, head.shape, b"".join(head.data[i * size : (i + 1) * size] for i in order))
    both = tiny.maps(tuple(tiny.ASCENDING[i] for i in order), tiny.VOCAB)
    if record == "without":
        (out / "draftconv.json").unlink()
    rewrite(out, tensors | {"lm_head.weight": moved, "d2t": both["d2t"]})
    assert verify(out, path).passed
    rewrite(out, tensors | {"d2t": both["d2t"]})
    assert different(verify(out, path)) == {"lm_head.weight"}


@pytest.mark.parametrize("to", ["vllm", "specforge"])
def test_a_map_to_other_tokens_fails_even_if_consistent(to: str, source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "reduced"), tmp_path / "out"
    convert(path, out, to=to)
    other = tiny.maps((*tiny.ASCENDING[:-1], tiny.VOCAB - 2), tiny.VOCAB)
    tensors = on_disk(out)
    rewrite(out, tensors | {name: other[name] for name in other if name in tensors})
    assert different(verify(out, path)) >= {"d2t and t2d"}


# ── tensor sets and dtypes ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("record", ["with", "without"])
def test_a_missing_or_added_tensor_fails(record: str, source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    if record == "without":
        (out / "draftconv.json").unlink()
    tensors = on_disk(out)
    for name in tensors:
        if name == "fc.weight":
            continue  # without it, it is no drafter at all
        rewrite(out, {other: tensor for other, tensor in tensors.items() if other != name})
        assert different(verify(out, path)), name
    extra = tiny.floats("extra", (64,), "BF16")
    for name in ("midlayer.surprise.weight", "rotary_emb.inv_freq", "verifier_norm.weight", "fc.bias",
                 "midlayer.mlp.up_proj.weight_scale"):  # fmt: skip
        rewrite(out, tensors | {name: extra})
        assert different(verify(out, path)), name


def test_an_undeclared_cast_fails(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    tensors = on_disk(out)
    norm = tensors["norm.weight"]
    wide = tiny.to_torch(norm).float().numpy().tobytes()
    rewrite(out, tensors | {"norm.weight": Tensor("F32", norm.shape, wide)})
    found = verify(out, path)
    assert different(found) == {"norm.weight", "draftconv.json"}
    assert found.record == "not believed"


# ── facts ──────────────────────────────────────────────────────────────────────────


def top(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config.update(keys)


def both_rope(**keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        config.update(keys)
        config["rope_parameters"].update(keys)

    return change


def ids(values: list[int] | None) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        del config["eagle_config"][KEY], config[KEY]
        if values is not None:
            config[KEY] = values

    return change


def feedback(nested: bool | None) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        config["norm_output"] = False
        del config["eagle_config"]["return_hidden_post_norm"]
        if nested is not None:
            config["eagle_config"]["return_hidden_post_norm"] = nested

    return change


def no_mscale(config: dict[str, Any]) -> None:
    del config["rope_scaling"]["mscale"], config["rope_parameters"]["mscale"]


EDITS: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "contradictory feedback": ("3.1", feedback(nested=True), "feedback-contradiction"),
    "feedback": ("3.1", feedback(nested=False), "feedback"),
    "no feedback": ("3.1", feedback(nested=None), "feedback"),
    "fc_norm": ("3.1", top(fc_norm=False, norm_before_fc=True), "fusion"),
    "ids": ("3.1", ids([1, 3, 4]), "boundaries"),
    "a later triple": ("3.1", ids([2, 5, 7]), "boundaries"),
    "no ids": ("3.1", ids(None), "boundaries"),
    "rope base": ("llama", both_rope(rope_theta=10000.0), "rope"),
    "rope scaling": ("yarn", no_mscale, "rope"),
    "eps": ("llama", top(rms_norm_eps=1e-5), "eps"),
    "residual": ("llama", top(norm_before_residual=True), "norm_before_residual"),
    "positions": ("llama", top(max_position_embeddings=2048), "max_positions"),
    "interleaving": ("mla", top(rope_interleave=False), "rope"),
}


@pytest.mark.parametrize("record", ["with", "without"])
@pytest.mark.parametrize("case", EDITS)
def test_a_changed_config_key_fails(case: str, record: str, source: Source, tmp_path: Path) -> None:
    variant, change, fact = EDITS[case]
    path, out = source("torchspec-native", variant), tmp_path / "out"
    convert(path, out, to="vllm", max_positions=32768 if variant == "mla" else None)
    if record == "without":
        (out / "draftconv.json").unlink()
    edit(out, change)
    assert fact in different(verify(out, path))


def test_a_default_triple_is_compared_through_the_target(source: Source, tmp_path: Path) -> None:
    """The source names no layers, the output does: equal for this target, not for a deeper one."""
    path, out = source("torchspec-native", "llama", ids=False), tmp_path / "out"
    target, deep = (tiny.write_target(tmp_path / name, layers=n) for name, n in (("target", 8), ("deep", 12)))
    convert(path, out, to="vllm", target=str(target))
    assert verify(out, path, target=str(target)).passed
    unsaid = verify(out, path)
    assert (unsaid.result, unsaid.cures) == ("claimed", ("add --target, which draftconv.json calls target",))
    (out / "draftconv.json").unlink()
    assert verify(out, path, target=str(target)).passed
    assert different(verify(out, path, target=str(deep))) == {"boundaries"}
    alone = verify(out, path)
    assert different(alone) == {"boundaries"}
    assert any("--target" in row.how for row in alone.facts)


# ── the record ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("to", [to for to in WRITABLE if to != "modelopt"])
def test_an_identity_conversion_needs_no_record(to: str, source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "reduced"), tmp_path / "out"
    convert(path, out, to=to)
    (out / "draftconv.json").unlink()
    found = verify(out, path)
    assert found.passed
    assert found.record == "absent"


def test_an_edited_record_declares_nothing(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm", embed="drop", force=True)
    assert verify(out, path).record == "believed"
    edit(out, lambda record: record["changes"].append({"kind": "fact", "what": "rope", "why": "x"}), "draftconv.json")
    found = verify(out, path)
    assert found.record == "not believed"
    assert different(found) == {"embed_tokens.weight", "own_embedding", "draftconv.json"}


def test_another_directorys_record_declares_nothing(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    dropping = ConvertOptions(to="vllm", embed="drop", force=True)
    convert(path, tmp_path / "out", **keywords(dropping))
    convert(path, tmp_path / "longer", **keywords(replace(dropping, max_positions=65536)))
    shutil.copy(tmp_path / "longer" / "draftconv.json", tmp_path / "out" / "draftconv.json")
    found = verify(tmp_path / "out", path)
    assert found.record == "not believed"
    assert not found.passed


def test_a_copied_record_does_not_vouch_for_other_bytes(tmp_path: Path) -> None:
    """Two runs of one recipe: same names, shapes and config, other weights; repairs are made again from the source."""
    outs = []
    for seed in (0, 1):
        spelled = tiny.spell(replace(tiny.VARIANTS["llama"], seed=seed), "modelopt-layers")
        path = spelled.write(tmp_path / f"source{seed}")
        convert(path, tmp_path / f"out{seed}", to="vllm", repairs=("double-norm",))
        outs.append(tmp_path / f"out{seed}")
    shutil.copy(outs[0] / "draftconv.json", outs[1] / "draftconv.json")
    mixed = on_disk(outs[0]) | {"midlayer.hidden_norm.weight": on_disk(outs[1])["midlayer.hidden_norm.weight"]}
    rewrite(outs[0], mixed)
    assert different(verify(outs[0], tmp_path / "source0")) == {"layers.0.hidden_norm.weight"}
    assert verify(outs[1], tmp_path / "source1").passed  # its bits are those of its own source


def test_another_source_is_not_what_the_record_is_about(source: Source, tmp_path: Path) -> None:
    dropping = ConvertOptions(to="vllm", embed="drop", force=True)
    convert(source("torchspec-native", "llama"), tmp_path / "out", **keywords(dropping))
    found = verify(tmp_path / "out", source("speculators", "llama"))
    assert found.record == "of another source"
    assert "embed_tokens.weight" in different(found)


def test_any_ancestor_can_be_verified_against(source: Source, tmp_path: Path) -> None:
    path = source("modelopt-layers", "frequency")
    target = str(tiny.write_target(tmp_path / "target"))
    convert(path, tmp_path / "b", to="torchspec", embed="from-target", target=target)
    convert(tmp_path / "b", tmp_path / "c", to="vllm", dtype="float32")
    convert(tmp_path / "c", tmp_path / "d", to="modelopt")
    for out, ancestors in (("b", [path]), ("c", [path, tmp_path / "b"]), ("d", [path, tmp_path / "b", tmp_path / "c"])):
        for ancestor in ancestors:
            found = verify(tmp_path / out, ancestor, target=target)
            assert found.passed, (out, ancestor, different(found))
            assert found.record == "believed"
    weights = tmp_path / "c" / "model.safetensors"
    flip(weights, offsets_in_file(weights)["embed_tokens.weight"][0])
    assert different(verify(tmp_path / "c", path, target=target)) == {"embed_tokens.weight"}


def test_what_the_conversion_was_told_of_its_source_is_said_again(tmp_path: Path) -> None:
    """A record cannot tell what layer ids mean: nobody else's word is behind it."""
    spelled = tiny.spell("llama", "torchspec-native")
    del spelled.config["_torchspec_version"]
    spelled.metadata = None
    spelled.config["eagle_config"][KEY] = [2, 3, 4]
    path = spelled.write(tmp_path / "source")
    convert(path, tmp_path / "out", to="vllm", aux_convention="before")
    assert document(tmp_path / "out", "config.json")[KEY] == [2, 3, 4]
    assert verify(tmp_path / "out", path, aux_convention="before").passed
    assert different(verify(tmp_path / "out", path, aux_convention="after")) == {"boundaries"}
    convert(path, tmp_path / "other", to="vllm", layout="angelslim")
    assert document(tmp_path / "other", "config.json")[KEY] == [3, 4, 5]
    assert verify(tmp_path / "other", path, layout="angelslim").passed


def test_progress_ends_at_the_total(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    seen: list[tuple[int, int]] = []
    verify(out, path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == sum(len(tensor.data) for tensor in on_disk(out).values())
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("to", "change", "what"),
    [
        ("vllm", top(architectures=["Foo"]), "vllm@0.33.0"),
        ("vllm", top(model_type="deepseek_v3"), "vllm@0.33.0"),
        ("vllm", top(num_hidden_layers=2), "vllm@0.33.0"),
        ("sglang", lambda config: config["eagle_config"].update({KEY: config[KEY]}), "sglang@0.5.23"),
        ("trtllm", top(tie_word_embeddings=True), "trtllm@1.3"),
    ],
    ids=["architecture", "model type", "layers", "nested ids", "tied head"],
)
@pytest.mark.parametrize("record", ["kept", "deleted"])
def test_an_engine_that_would_stumble_fails(
    to: str, change: Callable[[dict[str, Any]], None], what: str, record: str, tmp_path: Path
) -> None:
    source = tiny.spell("llama", "torchspec-native").write(tmp_path / "source")
    out, target = tmp_path / "out", str(tiny.write_target(tmp_path / "target"))
    convert(source, out, to=to, target=target)
    assert verify(out, source, target=target).passed
    if record == "deleted":
        (out / "draftconv.json").unlink()
    edit(out, change)
    found = verify(out, source, target=target)
    assert not found.passed
    assert different(found) & {what, "boundaries", "aux-contradiction"}
    assert ("draftconv.json" in different(found)) == (record == "kept")


def test_a_stray_weights_file_fails(tmp_path: Path) -> None:
    source = tiny.spell("llama", "torchspec-native").write(tmp_path / "source")
    convert(source, tmp_path / "out", to="vllm")
    shutil.copy(source / "model.safetensors", tmp_path / "out" / "other.safetensors")
    assert different(verify(tmp_path / "out", source)) == {"other.safetensors"}


def test_an_engine_that_cannot_be_judged_is_listed_not_praised(tmp_path: Path) -> None:
    source = tiny.spell("llama", "torchspec-native").write(tmp_path / "source")
    target = str(tiny.write_target(tmp_path / "target"))
    convert(source, tmp_path / "out", to="trtllm", target=target)
    (tmp_path / "out/draftconv.json").unlink()
    edit(tmp_path / "out", top(model_type="strange"))
    rows = verify(tmp_path / "out", source, target=target).directory
    assert [(row.what, row.outcome, row.how.split(":")[0]) for row in rows] == [("trtllm@1.3", "declared", "undecided")]


# ── quantized outputs ──────────────────────────────────────────────────────────────

DOWN = "layers.0.mlp.down_proj.weight"
RECIPES = ("w4a16", "w4a8", "quark-w4a8", "fp8", "w4a16-tiny")
TINY_GROUPS = """\
about: groups that fit a tiny drafter
weights: {dtype: int4, granularity: group, group: 8, scale_rule: mse, scale_dtype: weight}
exclude: [embed, lm_head, fc, norms]
"""


def quantized(recipe: str, path: Path, out: Path, **options: Any) -> Path:
    if recipe == "w4a16-tiny":
        file = out.parent / "w4a16-tiny.yaml"
        file.write_text(TINY_GROUPS)
        recipe = str(file)
    quantize(path, out, recipe=recipe, **options)
    return out


def outcomes(found: Verification) -> dict[str, tuple[str, str]]:
    return {row.what: (row.outcome, row.how) for row in found.tensors}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("variant", ["llama", "mla-3.1", "mixed", "reduced"])
def test_a_quantized_output_passes_and_tells_its_error(
    recipe: str, variant: str, source: Source, tmp_path: Path
) -> None:
    path = source("torchspec-native", variant)
    found = verify(quantized(recipe, path, tmp_path / "out"), path)
    assert found.passed, different(found)
    rows = outcomes(found)
    assert rows["fc.weight"] == ("equal", "every bit")
    outcome, how = rows[DOWN]
    assert outcome == "declared"
    error = float(how.rsplit(" ", 1)[1])
    assert 0.02 < error < (0.03 if recipe == "fp8" else 0.13)
    assert not [name for name in rows if "scale" in name]


def test_weights_beyond_the_clip_are_counted(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    found = {r: outcomes(verify(quantized(r, path, tmp_path / r), path))[DOWN][1] for r in ("w4a16", "quark-w4a8")}
    assert "clipped" in found["w4a16"]  # mse gives up a few large weights
    assert "clipped" not in found["quark-w4a8"]


def nibble(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        was = tensors[name]
        return {name: Tensor(was.dtype, was.shape, bytes([was.data[0] ^ 0x40]) + was.data[1:])}

    return change


def scale(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """The first scale of a module, changed."""

    def edited(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        was = tensors["midlayer.mlp.down_proj.weight_scale"]
        values = tiny.to_torch(was).clone()
        values.reshape(-1)[0] = change(values.reshape(-1)[0])
        data = values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {"midlayer.mlp.down_proj.weight_scale": Tensor(was.dtype, was.shape, data)}

    return edited


def other_order(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Nibbles of every word in Quark's order where they were in the natural one, or the other way round."""

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        was = tensors[name]
        words = [int.from_bytes(was.data[i : i + 4], "little") for i in range(0, len(was.data), 4)]
        moved = (sum(((w >> 4 * s & 15) << 4 * i) for i, s in enumerate((0, 2, 4, 6, 1, 3, 5, 7))) for w in words)
        return {name: Tensor(was.dtype, was.shape, b"".join(word.to_bytes(4, "little") for word in moved))}

    return change


def one_bit(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        was = tensors[name]
        return {name: Tensor(was.dtype, was.shape, bytes([was.data[0] ^ 1]) + was.data[1:])}

    return change


BROKEN: dict[str, tuple[Callable[[str], Callable[[dict[str, Tensor]], dict[str, Tensor]]], str, str]] = {
    "a nibble": (nibble, DOWN, "one value not the nearest"),
    "doubled scale": (lambda _: scale(lambda s: 2 * s), DOWN, "not the nearest"),
    "halved scale": (lambda _: scale(lambda s: s / 2), DOWN, "not the nearest"),
    "nan scale": (lambda _: scale(lambda s: s * torch.nan), DOWN, "neither finite nor positive"),
    "infinite scale": (lambda _: scale(lambda s: s * torch.inf), DOWN, "neither finite nor positive"),
    "zero scale": (lambda _: scale(lambda s: s * 0), DOWN, "neither finite nor positive"),
    "negative scale": (lambda _: scale(lambda s: -s), DOWN, "neither finite nor positive"),
    "nibble order": (other_order, DOWN, "not the nearest"),
    "excluded tensor": (lambda _: one_bit("fc.weight"), "fc.weight", "first in row 0"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("recipe", ["w4a16", "quark-w4a8", "w4a16-tiny"])
def test_a_damaged_quantized_output_fails(recipe: str, case: str, source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    out = quantized(recipe, path, tmp_path / "out", engines=("vllm:b200",) if recipe == "w4a16" else ())
    packed = "weight" if recipe == "quark-w4a8" else "weight_packed"
    tensors = on_disk(out)
    stem = next(name for name in tensors if name.endswith(f"mlp.down_proj.{packed}")).removesuffix(packed)
    renamed = {name.replace(stem, "midlayer.mlp.down_proj."): tensor for name, tensor in tensors.items()}
    change, what, how = BROKEN[case]
    changed = change(f"midlayer.mlp.down_proj.{packed}")(renamed)
    rewrite(out, tensors | {name.replace("midlayer.mlp.down_proj.", stem): t for name, t in changed.items()})
    found = verify(out, path)
    assert different(found) == {what}
    assert how in outcomes(found)[what][1]


def test_codes_that_leave_most_of_the_grid_unused_fail(source: Source, tmp_path: Path) -> None:
    """A scale far too large with codes that are the nearest under it: nothing is out of place but the weights."""
    path = source("torchspec-native", "llama")
    out = quantized("w4a16", path, tmp_path / "out", engines=("vllm:cpu",))
    tensors = on_disk(out)
    name = next(name for name in tensors if name.endswith("mlp.down_proj.weight_packed"))
    scales = name.replace("weight_packed", "weight_scale")
    weight = load_file(path / "model.safetensors")["midlayer.mlp.down_proj.weight"].float()
    wide = (weight.abs().amax(1, keepdim=True)).bfloat16()
    codes = (weight / wide.float()).round().clamp(-8, 7).to(torch.int64) + 8
    words = sum(codes[:, i::8] << 4 * i for i in range(8)).to(torch.int64)  # type: ignore[union-attr]
    rewrite(out, tensors | {
        name: Tensor("I32", tensors[name].shape, words.numpy().astype("<u4").tobytes()),
        scales: Tensor("BF16", tensors[scales].shape, wide.view(torch.uint8).numpy().tobytes()),
    })  # fmt: skip
    assert "more than twice what its largest weight needs" in outcomes(verify(out, path))[DOWN][1]


def test_a_quantized_output_without_a_record_is_undeclared(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    out = quantized("w4a16", path, tmp_path / "out", engines=("vllm:b200",))
    (out / "draftconv.json").unlink()
    found = verify(out, path)
    assert "quantization" in different(found)
    assert outcomes(found)[DOWN][1].endswith("undeclared")


@pytest.mark.parametrize("pack", ["compressed-pack", "compressed-int", "gptq", "quark-int4:order"])
def test_packed_anew_is_the_same_weight(pack: str, source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    seed = quantized("quark-w4a8", path, tmp_path / "seed")
    convert(seed, tmp_path / "out", to="vllm" if pack == "gptq" else None, pack=pack)
    found = verify(tmp_path / "out", seed)
    assert found.passed, different(found)
    assert outcomes(found)[DOWN] == ("equal", "the same INT4 values under the same scales")
    assert verify(tmp_path / "out", path).passed  # and still within rounding of what it was quantized from


@pytest.mark.parametrize(
    ("case", "how"),
    [("a nibble", "other integers"), ("doubled scale", "other scales"), ("nan scale", "neither finite"),
     ("nibble order", "other integers"), ("excluded tensor", "first in row 0")],
)  # fmt: skip
def test_packed_anew_and_damaged_fails(case: str, how: str, source: Source, tmp_path: Path) -> None:
    seed = quantized("quark-w4a8", source("torchspec-native", "llama"), tmp_path / "seed")
    convert(seed, tmp_path / "out", to="vllm", pack="compressed-pack")
    change, what, _ = BROKEN[case]
    tensors = on_disk(tmp_path / "out")
    rewrite(tmp_path / "out", tensors | change("midlayer.mlp.down_proj.weight_packed")(tensors))
    found = verify(tmp_path / "out", seed)
    assert different(found) == {what}
    assert how in outcomes(found)[what][1]


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_dequantized_is_what_the_integers_stand_for(dtype: str | None, source: Source, tmp_path: Path) -> None:
    seed = quantized("quark-w4a8", source("torchspec-native", "llama"), tmp_path / "seed")
    out = tmp_path / "out"
    convert(seed, out, to="sglang", dequantize=True, dtype=dtype)
    found = verify(out, seed)
    assert found.passed, different(found)
    told = "what the INT4 values stand for" + ("" if dtype else ", rounded once to BF16")
    assert outcomes(found)[DOWN] == ("declared", told)
    weights = out / "model.safetensors"
    start, stop = offsets_in_file(weights)["midlayer.mlp.down_proj.weight"]
    for at in (start, stop - 1):
        flip(weights, at)
        assert different(verify(out, seed)) == {DOWN}
        flip(weights, at)
    assert verify(out, seed).passed


def test_a_quantized_weight_that_is_missing_fails(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    out = quantized("w4a16", path, tmp_path / "out", engines=("vllm:b200",))
    kept = {name: t for name, t in on_disk(out).items() if ".down_proj." not in name}
    rewrite(out, kept)
    assert DOWN in different(verify(out, path))


def test_nothing_quantized_needs_no_torch(source: Source, tmp_path: Path) -> None:
    path, out = source("torchspec-native", "llama"), tmp_path / "out"
    convert(path, out, to="vllm")
    code = f"import sys; from draftconv.api.verify import verify; assert verify({str(out)!r}, {str(path)!r}).passed"
    listing = f"{code}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
