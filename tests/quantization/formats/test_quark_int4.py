"""Quark INT4 against bytes of amd-quark and against plain Python; every lie that its files tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.quantization import pack_int32
from draftconv.quantization.formats.base import Declared, Weight
from draftconv.quantization.formats.quark_int4 import FILE_TO_FILE, QUARK_INT4
from draftconv.quantization.regroup import regroup
from draftconv.quantization.rounding import RoundedWeight, dequantize
from draftconv.quantization.scheme import InputScheme, Scheme, WeightScheme
from tests.quantization import plain
from tests.quantization.formats.weights import equal, random_weight, same, vector

SLOTS = {"order": (0, 1, 2, 3, 4, 5, 6, 7), "reorder": (0, 2, 4, 6, 1, 3, 5, 7)}
CHANNEL = Scheme(WeightScheme("int4", "channel", "max/7.5", "weight"))
GROUP = Scheme(WeightScheme("int4", "group", "max/7.5", "weight", 8))
REORDER = Declared("int4", "channel", style="reorder")


def as_stored(row: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a vector: 8 outputs of 64, cut so that packed words stay whole."""
    return {
        "weight": torch.tensor(row["packed_int32"], dtype=torch.int32),
        "weight_scale": torch.tensor(row["weight_scale"]).to(torch.bfloat16),
        "weight_zero_point": torch.tensor(row["weight_zero_point_packed"], dtype=torch.int32),
    }


def read(row: dict[str, Any]) -> Declared:
    found = QUARK_INT4.read(row["quantization_config"], {})
    assert found is not None
    return found


# ── bytes of amd-quark ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "granularity", "group", "style"),
    [
        ("quark_0.13_int4_pc__quark_order", "channel", None, "order"),
        ("quark_0.13_int4_pc__quark_reorder", "channel", None, "reorder"),
        ("quark_0.11.1_int4_pc__quark_reorder", "channel", None, "reorder"),
        ("quark_0.13_int4_g32__quark_reorder", "group", 32, "reorder"),
    ],
)
def test_real_bytes(name: str, granularity: Any, group: int | None, style: str) -> None:
    row = vector(name)
    declared, stored = read(row), as_stored(row)
    assert declared == Declared("int4", granularity, group, None, ("embed_tokens", "fc", "lm_head"), style)
    assert QUARK_INT4.resolve(stored, declared) == declared
    weight = QUARK_INT4.load(stored, declared, "F32")
    assert weight.quantized.qvalues.tolist() == row["unpacked_int4"]
    assert dequantize(weight.quantized).tolist() == row["dequantized"]
    assert weight.dtype == "BF16"
    assert equal(QUARK_INT4.store(weight, style), stored)
    if "0.13" in name:
        assert QUARK_INT4.declare(declared, ()).config == row["quantization_config"]


def test_one_order_read_as_the_other_is_another_weight() -> None:
    row = vector("quark_0.13_int4_pc__quark_order")
    wrong = QUARK_INT4.load(as_stored(row), replace(read(row), style="reorder"), "BF16")
    assert wrong.quantized.qvalues.tolist() != row["unpacked_int4"]


@pytest.mark.parametrize("version", ["0.13", "0.11.1"])
def test_two_stages_are_refused(version: str) -> None:
    row = vector(f"quark_{version}_int4_fp8_progressive__quark_reorder")
    with pytest.raises(Refused, match="two stages") as caught:
        read(row)
    assert "product of two scales" in caught.value.why


def test_asymmetric_weights_are_refused() -> None:
    row = vector("quark_0.13_uint4_g32_asym__quark_reorder")
    with pytest.raises(Refused, match=r"dtype uint4.*symmetric False"):
        read(row)
    # and where the config lies, the zero points tell
    with pytest.raises(BadCheckpoint, match="weight_zero_point is not zero"):
        QUARK_INT4.load(as_stored(row), Declared("int4", "group", 32, style="reorder"), "BF16")


# ── plain Python ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("style", SLOTS)
def test_words_per_channel_run_along_inputs(style: str) -> None:
    weight = random_weight(CHANNEL, (8, 16), "BF16")
    stored, slots = QUARK_INT4.store(weight, style), SLOTS[style]
    assert stored["weight"].tolist() == [
        [plain.word(row[:8], slots), plain.word(row[8:], slots)] for row in weight.quantized.qvalues.tolist()
    ]
    assert stored["weight_scale"].tolist() == weight.quantized.scale[:, 0].tolist()
    assert stored["weight_zero_point"].tolist() == [0]


@pytest.mark.parametrize("style", SLOTS)
def test_words_per_group_run_along_outputs(style: str) -> None:
    weight = random_weight(GROUP, (16, 24), "F16")
    stored, slots = QUARK_INT4.store(weight, style), SLOTS[style]
    columns = weight.quantized.qvalues.T.tolist()
    assert stored["weight"].tolist() == [[plain.word(column[:8], slots), plain.word(column[8:], slots)]
                                         for column in columns]  # fmt: skip
    assert stored["weight_scale"].tolist() == weight.quantized.scale.T.tolist()
    assert stored["weight_zero_point"].tolist() == [[0, 0]] * 3


def test_a_worked_example() -> None:
    qvalues = torch.tensor([[-7, -2, 4, -6, 0, 5, -4, 1]] * 8, dtype=torch.int8)
    weight = Weight(RoundedWeight("int4", qvalues, torch.ones(8, 1, dtype=torch.bfloat16), torch.ones(())), "BF16")
    assert QUARK_INT4.store(weight, "reorder")["weight"][0, 0].item() == 0x15AEC049
    assert QUARK_INT4.store(weight, "order")["weight"][0, 0].item() == 0x1C50A4E9


# ── the label that lies ────────────────────────────────────────────────────────────


def file_to_file(weight: Weight) -> dict[str, Tensor]:
    """What Quark's file-to-file mode writes of a weight: natural order, F32 scales never transposed."""
    qvalues, scale = weight.quantized.qvalues, weight.quantized.scale.float()
    if weight.granularity == "channel":
        return {"weight": pack_int32.pack(qvalues, "order"), "weight_scale": scale[:, 0]}
    return {"weight": pack_int32.pack(qvalues.T.contiguous(), "order"), "weight_scale": scale}


@pytest.mark.parametrize("scheme", [CHANNEL, GROUP], ids=str)
@pytest.mark.parametrize("shape", [(8, 64), (64, 8), (64, 64)])
def test_file_to_file_is_seen_and_read_right(scheme: Scheme, shape: tuple[int, int]) -> None:
    weight = random_weight(scheme, shape, "BF16")
    stored = file_to_file(weight)
    declared = Declared("int4", scheme.weights.granularity, scheme.weights.group, style="reorder")
    found = QUARK_INT4.resolve(stored, declared)
    assert found == replace(declared, style=FILE_TO_FILE)
    assert FILE_TO_FILE not in QUARK_INT4.styles
    assert "natural order" in QUARK_INT4.only_read[FILE_TO_FILE]
    assert same(QUARK_INT4.load(stored, declared, "BF16"), weight)


def test_file_to_file_of_quark_itself() -> None:
    order, label = vector("quark_0.13_int4_pc__quark_order"), vector("quark_0.13_int4_pc__quark_reorder")
    stored = {"weight": as_stored(order)["weight"], "weight_scale": as_stored(order)["weight_scale"].float()}
    weight = QUARK_INT4.load(stored, read(label), "BF16")
    assert weight.quantized.qvalues.tolist() == order["unpacked_int4"]
    assert weight.quantized.scale.dtype == torch.bfloat16
    assert equal(QUARK_INT4.store(weight, "reorder"), as_stored(label))


def test_scales_that_need_f32_stay_f32() -> None:
    weight = random_weight(CHANNEL, (8, 16), "BF16")
    stored = file_to_file(weight) | {"weight_scale": torch.rand(8) + 0.1}
    found = QUARK_INT4.load(stored, REORDER, "BF16")
    assert found.quantized.scale.dtype == torch.float32
    with pytest.raises(Refused, match="keeps scales in the dtype of the weight"):
        QUARK_INT4.store(found)


def test_file_to_file_never_says_order() -> None:
    with pytest.raises(BadCheckpoint, match="zero_point is missing beside scales in F32"):
        QUARK_INT4.resolve(file_to_file(random_weight(CHANNEL, (8, 16), "BF16")), replace(REORDER, style="order"))


def test_one_group_as_long_as_a_row_is_stored_as_a_group() -> None:
    channel = random_weight(CHANNEL, (8, 16), "BF16")
    stored = QUARK_INT4.store(regroup(channel, 16))
    assert stored["weight"].shape == (16, 1)
    back = QUARK_INT4.load(stored, Declared("int4", "group", 16, style="reorder"), "BF16")
    assert (back.granularity, same(back, channel)) == ("group", True)
    assert equal(QUARK_INT4.store(regroup(back, None)), QUARK_INT4.store(channel))


# ── broken and refused ─────────────────────────────────────────────────────────────


def test_zero_points_beside_scales_of_sixteen_bits_may_be_missing() -> None:
    """They are zeros; the order of nibbles is the one that config.json names."""
    weight = random_weight(CHANNEL, (8, 16), "BF16")
    for order in ("reorder", "order"):
        stored = QUARK_INT4.store(weight, order)
        del stored["weight_zero_point"]
        assert same(QUARK_INT4.load(stored, Declared("int4", "channel", style=order), "BF16"), weight)


@pytest.mark.parametrize(
    "said", [Declared("int4", "group", 8, style="order"), Declared("int4", "group", style="order")]
)
def test_a_declaration_that_the_tensors_deny(said: Declared) -> None:
    stored = QUARK_INT4.store(random_weight(CHANNEL, (8, 16), "BF16"))
    with pytest.raises(BadCheckpoint, match=r"says scales per group.*have them per channel"):
        QUARK_INT4.load(stored, said, "BF16")


def test_what_is_not_declared_comes_from_the_tensors() -> None:
    stored = QUARK_INT4.store(random_weight(GROUP, (16, 24), "BF16"))
    found = QUARK_INT4.resolve(stored, Declared("int4", None, style="reorder"))
    assert (found.granularity, found.group) == ("group", 8)
    with pytest.raises(BadCheckpoint, match="pack_method is None") as caught:
        QUARK_INT4.load(stored, Declared("int4", None), "BF16")
    assert "do not tell" in caught.value.why


def test_groups_that_do_not_divide() -> None:
    stored = QUARK_INT4.store(random_weight(GROUP, (16, 24), "BF16"))
    stored |= {"weight_scale": torch.ones(5, 16), "weight_zero_point": torch.zeros(5, 2, dtype=torch.int32)}
    with pytest.raises(BadCheckpoint, match=r"weight_scale \[5, 16\] does not fit weight: 24 inputs"):
        QUARK_INT4.load(stored, Declared("int4", "group", style="reorder"), "BF16")


@pytest.mark.parametrize(
    ("shape", "scheme", "what"),
    [
        ((12, 16), CHANNEL, "12 outputs"),
        ((16, 12), CHANNEL, "12 inputs"),
        ((12, 16), GROUP, "12 outputs"),
        ((16, 12), GROUP, "no multiple of the group of 8"),
        ((16, 16), Scheme(WeightScheme("int4", "channel", "mse", "F32")), "dtype of the weight, BF16, not in F32"),
        ((16, 16), Scheme(CHANNEL.weights, InputScheme("fp8", "tensor", False)), "has no"),
        ((16, 16), Scheme(WeightScheme("int8", "channel", "mse", "weight")), "has no"),
    ],
)
def test_weights_that_have_no_bytes(shape: tuple[int, int], scheme: Scheme, what: str) -> None:
    with pytest.raises(Refused, match=what):
        QUARK_INT4.parts(shape, scheme, "BF16")


def test_store_refuses_what_parts_refuses() -> None:
    qvalues = torch.zeros(12, 16, dtype=torch.int8)
    weight = Weight(RoundedWeight("int4", qvalues, torch.ones(12, 1, dtype=torch.bfloat16), torch.ones(())), "BF16")
    with pytest.raises(Refused, match="12 outputs"):
        QUARK_INT4.store(weight)


def test_f64_weights_have_f32_scales() -> None:
    weight = random_weight(CHANNEL, (8, 16), "F32")
    weight = replace(weight, dtype="F64")
    assert [part.dtype for part in QUARK_INT4.parts((8, 16), CHANNEL, "F64")] == ["I32", "F32", "I32"]
    assert same(QUARK_INT4.load(QUARK_INT4.store(weight), REORDER, "F64"), weight)


@pytest.mark.parametrize(("granularity", "group"), [("group", None), ("channel", 32)])
def test_a_group_has_a_size_and_a_channel_none(granularity: Any, group: int | None) -> None:
    with pytest.raises(UsageError, match=f"a group of {group}"):
        QUARK_INT4.declare(Declared("int4", granularity, group), ())


def config(**changes: object) -> dict[str, object]:
    """A per-channel config with keys of the given sections replaced: `weight__group_size=8`."""
    found: Any = QUARK_INT4.declare(REORDER, ()).config
    for path, value in changes.items():
        node, *keys = found, *path.split("__")
        if keys[0] in ("weight", "input_tensors", "output_tensors"):
            keys.insert(0, "global_quant_config")
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value
    return dict(found)


@pytest.mark.parametrize(
    ("changes", "error", "what"),
    [
        ({"weight__group_size": 32}, BadCheckpoint, "group_size is 32 beside qscheme per_channel"),
        ({"weight__symmetric": False}, Refused, "symmetric False"),
        ({"weight__is_dynamic": True}, Refused, "is_dynamic True"),
        ({"weight__ch_axis": 1}, Refused, "ch_axis 1"),
        ({"weight": [{}, {}]}, Refused, "two stages"),
        ({"weight": "int4"}, BadCheckpoint, "weight is text, not an object"),
        ({"export__pack_method": "sideways"}, BadCheckpoint, "pack_method is sideways"),
        ({"export__pack_method": None}, BadCheckpoint, "has no pack_method"),
        ({"export__pack_method": 1}, BadCheckpoint, "pack_method is the number 1"),
        ({"export__weight_format": "fake_quantized"}, Refused, "weight_format is fake_quantized"),
        ({"export": []}, BadCheckpoint, "export is a list"),
        ({"exclude": "lm_head"}, BadCheckpoint, "exclude is not a list of names"),
        (
            {"input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
            Refused,
            "no such activations|input_tensors",
        ),
        ({"output_tensors": {"dtype": "int8"}}, Refused, "output_tensors is set"),
        ({"layer_quant_config": {"*q_proj": {}}}, Refused, "layer_quant_config is set"),
    ],
)
def test_configs_that_are_not_taken(changes: dict[str, object], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        QUARK_INT4.read(config(**changes), {})


@pytest.mark.parametrize("changes", [{"quant_method": "awq"}, {"weight__dtype": "fp8_e4m3"}, {"quant_method": 3}])
def test_configs_of_others_are_left_alone(changes: dict[str, object]) -> None:
    assert QUARK_INT4.read(config(**changes), {}) is None
