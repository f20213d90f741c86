"""compressed-tensors: against bytes that the package wrote, against plain Python, and broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftconv.errors import BadCheckpoint, DraftconvError, Refused
from draftconv.quantization.formats.base import Declared, Format
from draftconv.quantization.formats.compressed_float import compressed_float
from draftconv.quantization.formats.compressed_int import compressed_int
from draftconv.quantization.formats.compressed_pack import compressed_pack
from draftconv.quantization.pack_int32 import OFFSET, pack
from draftconv.quantization.rounding import dequantize
from draftconv.quantization.scheme import InputScheme
from tests.quantization import plain
from tests.quantization.formats import samples
from tests.quantization.formats.samples import FP8_TENSOR, FP8_TOKEN, INT8_TOKEN

# ── bytes of the package ───────────────────────────────────────────────────────────

VECTORS: list[tuple[str, Format, int | None, InputScheme | None]] = [
    ("w4a16_channel__pack-quantized", compressed_pack, None, None),
    ("w4a16_g128__pack-quantized", compressed_pack, 128, None),
    ("w4a8_int8_channel__pack-quantized", compressed_pack, None, INT8_TOKEN),
    ("w4a8_int8_g128__pack-quantized", compressed_pack, 128, INT8_TOKEN),
    ("w4a8_fp8_channel__pack-quantized", compressed_pack, None, FP8_TOKEN),
    ("w4a8_fp8_g128__pack-quantized", compressed_pack, 128, FP8_TOKEN),
    ("w4a16_channel__int-quantized", compressed_int, None, None),
    ("w4a8_int8_channel__int-quantized", compressed_int, None, INT8_TOKEN),
    ("w4a8_fp8_channel__int-quantized", compressed_int, None, FP8_TOKEN),
    ("w4a8_fp8_g128__int-quantized", compressed_int, 128, FP8_TOKEN),
]


@pytest.mark.parametrize(("name", "format", "group", "inputs"), VECTORS, ids=[row[0] for row in VECTORS])
def test_what_the_package_wrote(name: str, format: Format, group: int | None, inputs: InputScheme | None) -> None:
    row = samples.vector(f"compressed_tensors_{name}")
    declared = format.read(row["quantization_config"], {})
    ignore = ("lm_head", "fc", "re:.*embed_tokens.*")
    assert declared == Declared("int4", "group" if group else "channel", group, inputs, ignore)
    tensors = samples.tensors_of(row)
    weight = format.load(tensors, declared, "F32")
    assert weight.dtype == "BF16"
    assert dequantize(weight.quantized, torch.bfloat16).tolist() == row["dequantized"]
    assert samples.equal(format.store(weight), {name: tensors[name] for name in format.store(weight)})
    assert set(format.store(weight)) == set(tensors)
    shape = (weight.quantized.qvalues.shape[0], weight.quantized.qvalues.shape[1])
    plan = samples.scheme("int4", group, inputs=inputs)
    assert sorted(samples.foretold(format, shape, plan, "BF16")) == sorted(samples.found(tensors))


@pytest.mark.parametrize(("name", "format"), [row[:2] for row in VECTORS], ids=[row[0] for row in VECTORS])
def test_what_we_declare_is_what_the_package_declares(name: str, format: Format) -> None:
    theirs = samples.vector(f"compressed_tensors_{name}")["quantization_config"]
    declared = format.read(theirs, {})
    assert declared is not None
    ours = format.declare(declared, []).config
    assert within(ours, theirs) == []


def within(ours: Mapping[str, Any], theirs: Mapping[str, Any], at: str = "") -> list[str]:
    """Keys of ours that are absent from theirs or say something else."""
    wrong = []
    for key, value in ours.items():
        if isinstance(value, dict) and isinstance(theirs.get(key), dict):
            wrong += within(value, theirs[key], f"{at}{key}.")
        elif key not in theirs or theirs[key] != value:
            wrong.append(f"{at}{key}")
    return wrong


@pytest.mark.parametrize("form", ["pack", "int"])
def test_asymmetric_ones_of_the_package_are_refused(form: str) -> None:
    row = samples.vector(f"compressed_tensors_w4a16_g128_asym__{form}-quantized")
    format: Format = compressed_pack if form == "pack" else compressed_int
    with pytest.raises(Refused, match="asymmetric"):
        format.read(row["quantization_config"], {})
    with pytest.raises(Refused, match="weight_zero_point"):
        format.load(samples.tensors_of(row), samples.declared("int4", 128), "BF16")


# ── plain Python ───────────────────────────────────────────────────────────────────


def test_int4_words_hold_eight_codes_plus_8() -> None:
    weight = samples.weight("int4", 32)
    words = compressed_pack.store(weight)["weight_packed"].tolist()
    for row, qvalues in zip(words, weight.quantized.qvalues.tolist(), strict=True):
        shifted = [code + 8 for code in qvalues]
        assert row == [plain.word(shifted[at : at + 8], range(8)) for at in range(0, len(qvalues), 8)]


def test_int8_words_hold_four_codes_plus_128() -> None:
    weight = samples.weight("int8", 32)
    words = compressed_pack.store(weight)["weight_packed"].tolist()
    for row, qvalues in zip(words, weight.quantized.qvalues.tolist(), strict=True):
        fours = [qvalues[at : at + 4] for at in range(0, len(qvalues), 4)]
        assert [word % 2**32 for word in row] == [sum(code + 128 << 8 * i for i, code in enumerate(f)) for f in fours]


def test_one_known_word() -> None:
    """Codes -7 -2 4 -6 0 5 -4 1: in two's complement 0x1C50A4E9, in offset binary its sign bits flipped."""
    weight = samples.weight("int4", rows=8, inputs=8)
    weight.quantized.qvalues[0] = torch.tensor([-7, -2, 4, -6, 0, 5, -4, 1])
    tensors = compressed_pack.store(weight)
    assert tensors["weight_packed"][0].item() % 2**32 == 0x1C50A4E9 ^ 0x88888888
    assert tensors["weight_shape"].tolist() == [8, 8]


def test_a_permuted_word_is_another_weight() -> None:
    weight = samples.weight("int4")
    tensors = compressed_pack.store(weight)
    permuted = pack(weight.quantized.qvalues, "reorder") ^ OFFSET
    again = compressed_pack.load(tensors | {"weight_packed": permuted}, samples.declared("int4"), "BF16")
    assert not samples.same(again, weight)


def test_scales_per_tensor_are_one_number() -> None:
    weight = samples.weight("fp8", granularity="tensor", static=True)
    tensors = compressed_float.store(weight)
    assert [list(tensors[name].shape) for name in ("weight_scale", "input_scale")] == [[1], [1]]
    assert torch.equal(tensors["weight"].view(torch.uint8), weight.quantized.qvalues.view(torch.uint8))


def test_a_static_scale_of_16_bits_is_read_as_float32() -> None:
    tensors = compressed_float.store(samples.weight("fp8", granularity="tensor", static=True))
    tensors["input_scale"] = tensors["input_scale"].bfloat16()
    weight = compressed_float.load(tensors, samples.declared("fp8", granularity="tensor", inputs=FP8_TENSOR), "BF16")
    assert weight.input_scale is not None
    assert (weight.input_scale.dtype, weight.input_scale.shape) == (torch.float32, ())


# ── the dtype of scales ────────────────────────────────────────────────────────────


def test_scales_tell_the_dtype_of_the_weight() -> None:
    """As the package writes them; where engines hold float32 anyway, F32 tells nothing."""
    packed = compressed_pack.store(samples.weight("int4", dtype="F32"))
    assert compressed_pack.load(packed, samples.declared("int4"), "F16").dtype == "F32"
    wide = compressed_int.store(samples.weight("int8", dtype="F32"))
    assert compressed_int.load(wide, samples.declared("int8"), "F16").dtype == "F16"
    halves = compressed_int.store(samples.weight("int8", dtype="BF16"))
    assert compressed_int.load(halves, samples.declared("int8"), "F16").dtype == "BF16"


def test_f32_scales_become_narrow_only_when_nothing_is_lost() -> None:
    exact = samples.weight("int4", dtype="BF16")
    wide = samples.with_(exact, quantized=samples.with_scale(exact, exact.quantized.scale.float()))
    assert samples.equal(compressed_pack.store(wide), compressed_pack.store(exact))
    lossy = samples.with_(exact, quantized=samples.with_scale(exact, exact.quantized.scale.float() * (1 + 2**-20)))
    with pytest.raises(Refused, match="would change scales from F32 to BF16"):
        compressed_pack.store(lossy)
    with pytest.raises(Refused, match="no room for F32 scales of BF16 weights"):
        compressed_pack.parts((16, 64), samples.scheme("int4", scale_dtype="F32"), "BF16")


def test_scales_of_f64_weights_are_f32() -> None:
    plan = samples.scheme("int4")
    assert samples.foretold(compressed_pack, (16, 64), plan, "F64")[1] == ("weight_scale", "F32", (16, 1))
    assert (
        compressed_pack.store(samples.weight("int4", dtype="F64", scale="F32"))["weight_scale"].dtype == torch.float32
    )


def test_half_words_and_torn_groups_are_refused() -> None:
    with pytest.raises(Refused, match="12 inputs are no multiple of 8"):
        compressed_pack.parts((16, 12), samples.scheme("int4"), "BF16")
    assert compressed_int.parts((16, 12), samples.scheme("int4"), "BF16")[0].shape == (16, 12)
    with pytest.raises(Refused, match="64 inputs are no multiple of 128"):
        compressed_pack.parts((16, 64), samples.scheme("int4", 128), "BF16")


# ── broken tensors ─────────────────────────────────────────────────────────────────

PACKED, SCALE, SHAPE = "weight_packed", "weight_scale", "weight_shape"
i64 = torch.tensor
BROKEN: list[tuple[str, dict[str, Any], type[DraftconvError], str]] = [
    ("no scale", {SCALE: None}, BadCheckpoint, r"weight_scale is missing"),
    ("no codes", {PACKED: None}, BadCheckpoint, r"weight_packed is missing"),
    ("float codes", {PACKED: torch.zeros(16, 8)}, BadCheckpoint, r"weight_packed is F32 \[16, 8\], not I32"),
    ("a strange dtype", {PACKED: torch.zeros(16, 8).bool()}, BadCheckpoint, r"weight_packed is torch.bool"),
    ("codes in one row", {PACKED: torch.zeros(8).int()}, BadCheckpoint, r"is I32 \[8\], not I32 \[any, any"),
    ("integer scales", {SCALE: torch.ones(16, 2).int()}, BadCheckpoint, r"is I32 \[16, 2\], not F32 or F16 or BF16"),
    ("a scale too few", {SCALE: torch.ones(15, 2).bfloat16()}, BadCheckpoint, r"is BF16 \[15, 2\], not"),
    ("flat scales", {SCALE: torch.ones(16).bfloat16()}, BadCheckpoint, r"is BF16 \[16\], not"),
    ("other groups", {SCALE: torch.ones(16, 4).bfloat16()}, BadCheckpoint, r"4 scales for 64 inputs are not groups"),
    ("no scales", {SCALE: torch.ones(16, 0).bfloat16()}, BadCheckpoint, r"is BF16 \[16, 0\], not"),
    ("a lie about rows", {SHAPE: i64([8, 64])}, BadCheckpoint, r"says \[8, 64\], but weight_packed holds \[16, 64\]"),
    ("a lie about inputs", {SHAPE: i64([16, 128])}, BadCheckpoint, r"says \[16, 128\]"),
    ("sizes swapped", {SHAPE: i64([64, 16])}, BadCheckpoint, r"says \[64, 16\]"),
    ("a padded word", {SHAPE: i64([16, 60])}, Refused, r"60 inputs, which end inside a word of 8 quantized values"),
    ("a shape of floats", {SHAPE: torch.tensor([16.0, 64.0])}, BadCheckpoint, r"weight_shape is F32"),
    ("a shape of three", {SHAPE: i64([16, 64, 1])}, BadCheckpoint, r"weight_shape is I64 \[3\], not I64 \[2\]"),
    ("zero points", {"weight_zero_point": torch.zeros(2, 2).int()}, Refused, r"makes the weight asymmetric"),
    ("an order", {"weight_g_idx": torch.zeros(64).int()}, BadCheckpoint, r"pack-quantized has no weight_g_idx"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "says"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_broken_tensors(changes: dict[str, Any], error: type[DraftconvError], says: str) -> None:
    tensors = compressed_pack.store(samples.weight("int4", 32)) | changes
    with pytest.raises(error, match=says):
        compressed_pack.load(
            {name: tensor for name, tensor in tensors.items() if tensor is not None},
            samples.declared("int4", 32),
            "BF16",
        )


def test_the_shape_is_not_needed_and_a_bias_is_let_alone() -> None:
    weight = samples.weight("int4", 32)
    tensors = compressed_pack.store(weight)
    del tensors["weight_shape"]
    assert samples.same(
        compressed_pack.load(tensors | {"bias": torch.zeros(16)}, samples.declared("int4", 32), "BF16"), weight
    )


def test_bytes_that_are_no_int4_are_seen() -> None:
    tensors = compressed_int.store(samples.weight("int8"))
    with pytest.raises(BadCheckpoint, match=r"quantized values from -128 to 127 are no INT4"):
        compressed_int.load(tensors, samples.declared("int4"), "BF16")
    assert compressed_int.load(tensors, samples.declared("int8"), "BF16").quantized.dtype == "int8"


def test_static_scales_are_there_when_declared_and_only_then() -> None:
    static = compressed_float.store(samples.weight("fp8", granularity="tensor", static=True))
    with pytest.raises(BadCheckpoint, match="float-quantized has no input_scale"):
        compressed_float.load(static, samples.declared("fp8", granularity="tensor", inputs=FP8_TOKEN), "BF16")
    del static["input_scale"]
    with pytest.raises(BadCheckpoint, match="input_scale is missing"):
        compressed_float.load(static, samples.declared("fp8", granularity="tensor", inputs=FP8_TENSOR), "BF16")
    with pytest.raises(BadCheckpoint, match=r"weight_scale is BF16 \[1\], not"):
        compressed_float.load(static, samples.declared("fp8"), "BF16")


# ── broken configs ─────────────────────────────────────────────────────────────────


def config(weights: dict[str, Any], group: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    said = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel", **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": said, **(group or {})}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, **top}


TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
SPOKEN: list[tuple[dict[str, Any], Declared | None]] = [
    (config({}), Declared("int4", "channel")),
    (config({"strategy": None, "group_size": -1}), Declared("int4", "channel")),
    (config({"strategy": None, "group_size": 64}), Declared("int4", "group", 64)),
    (config({"type": "INT", "strategy": "GROUP", "group_size": 32}), Declared("int4", "group", 32)),
    (config({"num_bits": None}), Declared("int8", "channel")),
    (config({"actorder": "weight"}), Declared("int4", "channel")),
    (config({}, {"input_activations": TOKEN}), Declared("int4", "channel", None, INT8_TOKEN)),
    (config({}, {"format": "pack-quantized"}, format="mixed-precision"), Declared("int4", "channel")),
    (config({}, format="int-quantized"), None),
    (config({}, format="marlin-24"), None),
    (config({}, quant_method="gptq"), None),
    ({}, None),
    ({"quant_method": "compressed-tensors"}, None),
]


@pytest.mark.parametrize(("said", "declared"), SPOKEN)
def test_spellings(said: dict[str, Any], declared: Declared | None) -> None:
    assert compressed_pack.read(said, {}) == declared


CONTRADICTIONS: list[tuple[dict[str, Any], type[DraftconvError], str]] = [
    (config({"strategy": "group"}), BadCheckpoint, "strategy group lacks group_size"),
    (config({"strategy": "group", "group_size": 0}), BadCheckpoint, "group_size is 0, not a size"),
    (config({"group_size": 128}), BadCheckpoint, "group_size 128 contradicts strategy channel"),
    (config({"num_bits": "4"}), BadCheckpoint, "num_bits is text, not an integer"),
    (config({"symmetric": "no"}), BadCheckpoint, "symmetric is text, not true or false"),
    ({**config({}), "config_groups": []}, BadCheckpoint, "config_groups is a list, not an object"),
    ({**config({}), "config_groups": {"a": 1}}, BadCheckpoint, "a is the number 1, not an object"),
    (config({}, ignore="fc"), BadCheckpoint, "ignore is not a list of names"),
    (config({"symmetric": False}), Refused, "asymmetric"),
    (config({"dynamic": True}), Refused, "dynamic"),
    (config({"actorder": "group"}), Refused, "actorder group"),
    (config({"num_bits": 3}), Refused, "weights of 3 bits, type int"),
    (config({"strategy": "block"}), Refused, "scales per block"),
    (config({"strategy": "tensor"}), Refused, "holds no INT4 weights per tensor"),
    (config({"num_bits": 8, "type": "float"}), Refused, "holds no FP8 E4M3 weights"),
    (config({}, {"input_activations": {**TOKEN, "symmetric": False}}), Refused, "input_activations are of a kind"),
    (config({}, {"input_activations": {**TOKEN, "dynamic": False}}), Refused, "input_activations are of a kind"),
    (config({}, {"output_activations": TOKEN}), Refused, "output_activations"),
    (config({}, kv_cache_scheme={"num_bits": 8}), Refused, "kv_cache_scheme"),
    (config({}, transform_config={"R1": {}}), Refused, "transform_config"),
    (config({}, sparsity_config={"format": "24"}), Refused, "sparsity_config"),
    (
        {**config({}), "config_groups": dict.fromkeys(("a", "b"), config({})["config_groups"]["group_0"])},
        Refused,
        "has 2 entries",
    ),
]


@pytest.mark.parametrize(("said", "error", "says"), CONTRADICTIONS, ids=[row[2] for row in CONTRADICTIONS])
def test_contradictions(said: dict[str, Any], error: type[DraftconvError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        compressed_pack.read(said, {})
    assert type(caught.value) is error


def test_a_quantized_head_is_a_target_of_its_own() -> None:
    for head, targets in ((False, ["Linear"]), (True, ["Linear", "re:.*lm_head$"])):
        told = replace(samples.declared("int4"), head=head)
        config = compressed_pack.declare(told, ["fc", "lm_head"]).config
        groups = config["config_groups"]
        assert isinstance(groups, dict)
        assert groups["group_0"]["targets"] == targets
        assert compressed_pack.read(config, {}) == told
