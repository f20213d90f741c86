"""GPTQ and AutoAWQ: against the worked vectors, against plain Python, and broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftconv.errors import BadCheckpoint, DraftconvError, Refused, UsageError
from draftconv.quantization.formats.autoawq import autoawq
from draftconv.quantization.formats.base import Declared, Format, Weight
from draftconv.quantization.formats.compressed_pack import compressed_pack
from draftconv.quantization.formats.gptq import ZERO, gptq
from draftconv.quantization.formats.gptq_awq import read_scales
from draftconv.quantization.formats.module_tensors import ModuleTensors
from draftconv.quantization.pack_int32 import OFFSET, unpack
from draftconv.quantization.rounding import RoundedWeight
from tests.quantization import plain
from tests.quantization.formats import samples

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
both = pytest.mark.parametrize("format", [gptq, autoawq], ids=lambda format: format.id)


def signed(bits: int) -> int:
    return bits - 2**32 if bits >= 2**31 else bits


def half(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).half()


def symmetric(row: dict[str, Any]) -> Weight:
    """The codes and scales of a vector, whose own zero points are not symmetric, around 8."""
    qvalues = torch.tensor(row["q_uint4_out_in"], dtype=torch.int8) - 8
    scales = half(row["scales_f16_group_out"]).T.contiguous()
    return Weight(RoundedWeight("int4", qvalues, scales, torch.ones(())), "F16")


# ── vectors ────────────────────────────────────────────────────────────────────────


def test_gptq_words_of_the_vector() -> None:
    row = samples.vector("gptq_g32")
    tensors = gptq.store(symmetric(row))
    assert tensors["qweight"].tolist() == row["qweight_indiv8_out"]
    assert tensors["scales"].tolist() == row["scales_f16_group_out"]
    assert tensors["g_idx"].tolist() == row["g_idx"]
    again = gptq.load(tensors, samples.declared("int4", 32), "BF16")
    assert samples.same(again, symmetric(row))


def test_autoawq_words_of_the_vector() -> None:
    row = samples.vector("autoawq_gemm_g32")
    tensors = autoawq.store(symmetric(row))
    assert tensors["qweight"].tolist() == row["qweight_in_outdiv8"]
    assert tensors["scales"].tolist() == row["scales_f16_group_out"]
    assert samples.same(autoawq.load(tensors, samples.declared("int4", 32), "BF16"), symmetric(row))


def test_the_vectors_own_zero_points_are_refused() -> None:
    for format, name, words in (
        (gptq, "gptq_g32", "qzeros_v1_minus1"),
        (autoawq, "autoawq_gemm_g32", "qzeros_group_outdiv8"),
    ):
        row = samples.vector(name)
        tensors = format.store(symmetric(row)) | {"qzeros": torch.tensor(row[words], dtype=torch.int32)}
        with pytest.raises(Refused, match="2 of 2 words of qzeros hold other zero points than 8"):
            format.load(tensors, samples.declared("int4", 32), "BF16")


def test_the_zero_points_of_the_vectors_are_as_we_understand_them() -> None:
    """What is stored less one is told from what is stored as it is by the numbers of the vector itself."""
    row = samples.vector("gptq_g32")
    for words, less in ((row["qzeros_v1_minus1"], 1), (row["qzeros_v2"], 0)):
        for group, (word,) in enumerate(words):
            zeros = [zero[group] - less for zero in row["zeros_out_group"]]
            assert word == plain.word(zeros, range(8))


# ── plain Python ───────────────────────────────────────────────────────────────────


def test_gptq_words_go_down_the_inputs() -> None:
    weight = samples.weight("int4", 32)
    tensors, qvalues = gptq.store(weight), weight.quantized.qvalues.tolist()
    words = [
        [plain.word([code + 8 for code in row[at : at + 8]], range(8)) for row in qvalues] for at in range(0, 64, 8)
    ]
    assert tensors["qweight"].tolist() == words
    assert tensors["qzeros"].tolist() == [[0x77777777] * 2] * 2
    assert tensors["g_idx"].tolist() == [0] * 32 + [1] * 32
    assert torch.equal(tensors["scales"], weight.quantized.scale.T)


def test_gptq_is_compressed_tensors_transposed() -> None:
    weight = samples.weight("int4")
    assert torch.equal(gptq.store(weight)["qweight"], compressed_pack.store(weight)["weight_packed"].T)


def test_autoawq_words_go_across_the_outputs() -> None:
    weight = samples.weight("int4", 32)
    tensors, columns = autoawq.store(weight), weight.quantized.qvalues.T.tolist()
    words = [[plain.word([code + 8 for code in column[at : at + 8]], ORDER) for at in (0, 8)] for column in columns]
    assert tensors["qweight"].tolist() == words
    assert tensors["qzeros"].tolist() == [[signed(0x88888888)] * 2] * 2


def test_words_in_another_order_are_another_weight() -> None:
    weight = samples.weight("int4", 32)
    tensors = autoawq.store(weight)
    natural = unpack(tensors["qweight"] ^ OFFSET, "order").T
    assert not torch.equal(natural, weight.quantized.qvalues)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@both
def test_scales_tell_the_dtype_of_the_weight(format: Format, dtype: str) -> None:
    weight = samples.weight("int4", 32, dtype=dtype)
    assert format.load(format.store(weight), samples.declared("int4", 32), "F32").dtype == dtype


@both
def test_scales_of_32_bits_are_refused(format: Format) -> None:
    with pytest.raises(Refused, match="has 16-bit scales, and F32 weights have others"):
        format.parts((16, 64), samples.scheme("int4", 32), "F32")
    with pytest.raises(Refused, match="has 16-bit scales, and F32 weights have others"):
        format.store(samples.weight("int4", 32, dtype="F32"))
    with pytest.raises(Refused, match="no room for F32 scales of BF16 weights"):
        format.parts((16, 64), samples.scheme("int4", 32, scale_dtype="F32"), "BF16")
    exact = samples.weight("int4", 32)
    wide = samples.with_(exact, quantized=samples.with_scale(exact, exact.quantized.scale.float()))
    assert samples.equal(format.store(wide), format.store(exact))
    other = samples.with_(exact, quantized=samples.with_scale(exact, exact.quantized.scale.float() * (1 + 2**-20)))
    with pytest.raises(Refused, match="would change scales from F32 to BF16"):
        format.store(other)


def test_which_bf16_scales_f16_holds() -> None:
    """The bound that the module states."""
    scales = torch.tensor([2.0**-14, 1.5 * 2**-14, 255 * 2.0**-22, 1.0, 65280.0]).bfloat16()
    assert torch.equal(scales.half().bfloat16(), scales)
    beyond = torch.tensor([255 * 2.0**-25, 65536.0]).bfloat16()
    assert not (beyond.half().bfloat16() == beyond).any()


@both
def test_half_words_and_torn_groups_are_refused(format: Format) -> None:
    plan = samples.scheme("int4", 4)
    with pytest.raises(Refused, match="12 outputs are no multiple of 8"):
        format.parts((12, 64), plan, "BF16")
    with pytest.raises(Refused, match="60 inputs are no multiple of 8"):
        format.parts((16, 60), plan, "BF16")
    with pytest.raises(Refused, match="64 inputs are no multiple of 128"):
        format.parts((16, 64), samples.scheme("int4", 128), "BF16")


# ── broken tensors ─────────────────────────────────────────────────────────────────

zeros = torch.zeros(2, 2, dtype=torch.int32)
BROKEN: list[tuple[str, dict[str, Any], type[DraftconvError], str]] = [
    ("no codes", {"qweight": None}, BadCheckpoint, "qweight is missing"),
    ("no scales", {"scales": None}, BadCheckpoint, "scales is missing"),
    ("no zero points", {"qzeros": None}, BadCheckpoint, "qzeros is missing"),
    ("float codes", {"qweight": torch.zeros(8, 16)}, BadCheckpoint, "qweight is F32"),
    ("wide scales", {"scales": torch.ones(2, 16)}, BadCheckpoint, "scales is F32"),
    ("scales across", {"scales": torch.ones(16, 2).half()}, BadCheckpoint, r"scales is F16 \[16, 2\], not"),
    ("other groups", {"scales": torch.ones(4, 16).half()}, BadCheckpoint, "4 scales for 64 inputs are not groups"),
    ("zero points of less", {"qzeros": zeros[:1]}, BadCheckpoint, r"qzeros is I32 \[1, 2\], not I32 \[2, 2\]"),
    ("zero points of 0", {"qzeros": zeros}, Refused, "4 of 4 words of qzeros"),
    ("a stranger", {"weight": zeros}, BadCheckpoint, "has no weight"),
]  # fmt: skip


@both
@pytest.mark.parametrize(("changes", "error", "says"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_broken_tensors(format: Format, changes: dict[str, Any], error: type[DraftconvError], says: str) -> None:
    tensors = format.store(samples.weight("int4", 32)) | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(error, match=says):
        format.load(kept, samples.declared("int4", 32), "BF16")


@both
def test_one_zero_point_that_differs_is_seen(format: Format) -> None:
    tensors = format.store(samples.weight("int4", 32))
    tensors["qzeros"][1, 0] ^= 1 << 12
    with pytest.raises(Refused, match="1 of 4 words of qzeros"):
        format.load(tensors, samples.declared("int4", 32), "BF16")


def test_zero_points_are_stored_less_one_in_gptq_alone() -> None:
    tensors = ModuleTensors("GPTQ", autoawq.store(samples.weight("int4", 32)))
    with pytest.raises(Refused, match="4 of 4 words"):
        read_scales(tensors, samples.declared("int4", 32), (16, 64), ZERO)


def test_an_order_of_inputs_is_refused_and_its_absence_is_none() -> None:
    weight = samples.weight("int4", 32)
    tensors = gptq.store(weight)
    swapped = tensors["g_idx"].flip(0)
    with pytest.raises(Refused, match="g_idx puts inputs under scales out of order"):
        gptq.load(tensors | {"g_idx": swapped}, samples.declared("int4", 32), "BF16")
    with pytest.raises(BadCheckpoint, match="g_idx is I64"):
        gptq.load(tensors | {"g_idx": swapped.long()}, samples.declared("int4", 32), "BF16")
    del tensors["g_idx"]
    assert samples.same(gptq.load(tensors, samples.declared("int4", 32), "BF16"), weight)


# ── configs ────────────────────────────────────────────────────────────────────────

GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
ROUND: dict[str, Any] = {
    "quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 128, "sym": True,
}  # fmt: skip
SPOKEN: list[tuple[Format, dict[str, Any], Declared | None]] = [
    (gptq, GPTQ, Declared("int4", "group", 128)),
    (gptq, GPTQ | {"group_size": -1}, Declared("int4", "channel")),
    (gptq, GPTQ | {"group_size": -1, "desc_act": True}, Declared("int4", "channel")),
    (gptq, GPTQ | {"checkpoint_format": "gptq", "dynamic": {}, "lm_head": False}, Declared("int4", "group", 128)),
    (gptq, GPTQ | {"dynamic": {"-:.*fc$": {}}}, Declared("int4", "group", 128, ignore=("-:.*fc$",))),
    (gptq, AWQ, None),
    (gptq, {}, None),
    (autoawq, AWQ, Declared("int4", "group", 128, style="awq")),
    (autoawq, AWQ | {"version": "GEMM"}, Declared("int4", "group", 128, style="awq")),
    (autoawq, {"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, Declared("int4", "group", 64, style="awq")),
    (autoawq, AWQ | {"modules_to_not_convert": ["fc"]}, Declared("int4", "group", 128, None, ("fc",), "awq")),
    (autoawq, AWQ | {"modules_to_not_convert": None}, Declared("int4", "group", 128, style="awq")),
    (autoawq, ROUND, Declared("int4", "group", 128, style="auto-round")),
    (
        autoawq,
        ROUND | {"extra_config": {"model.fc": {"bits": 16}}},
        Declared("int4", "group", 128, None, ("model.fc",), "auto-round"),
    ),
    (autoawq, ROUND | {"packing_format": "auto_round:auto_gptq"}, None),
    (autoawq, GPTQ, None),
]


@pytest.mark.parametrize(("format", "said", "declared"), SPOKEN)
def test_spellings(format: Format, said: dict[str, Any], declared: Declared | None) -> None:
    assert format.read(said, {}) == declared


CONTRADICTIONS: list[tuple[Format, dict[str, Any], type[DraftconvError], str]] = [
    (gptq, GPTQ | {"bits": None}, BadCheckpoint, "lacks bits"),
    (gptq, GPTQ | {"bits": 8}, Refused, "8-bit weights"),
    (gptq, GPTQ | {"bits": "4"}, BadCheckpoint, "bits is text"),
    (gptq, GPTQ | {"group_size": None}, BadCheckpoint, "lacks group_size"),
    (gptq, GPTQ | {"group_size": 0}, BadCheckpoint, "group_size is 0"),
    (gptq, GPTQ | {"sym": False}, Refused, "asymmetric"),
    (gptq, GPTQ | {"sym": 1}, BadCheckpoint, "sym is the number 1"),
    (gptq, GPTQ | {"desc_act": True}, Refused, "desc_act"),
    (gptq, GPTQ | {"checkpoint_format": "gptq_v2"}, Refused, "checkpoint_format gptq_v2"),
    (gptq, GPTQ | {"checkpoint_format": "marlin"}, Refused, "checkpoint_format marlin"),
    (gptq, GPTQ | {"dynamic": {"-:fc": {}, "+:.*o_proj": {"bits": 8}}}, Refused, "schemes of their own"),
    (gptq, GPTQ | {"dynamic": []}, BadCheckpoint, "dynamic is a list"),
    (autoawq, AWQ | {"version": "gemv"}, Refused, "version gemv"),
    (autoawq, AWQ | {"group_size": -1}, Refused, "holds no INT4 weights per channel"),
    (autoawq, AWQ | {"bits": 3}, Refused, "3-bit weights"),
    (autoawq, AWQ | {"modules_to_not_convert": "fc"}, BadCheckpoint, "not a list of names"),
    (autoawq, ROUND | {"data_type": "mx_fp"}, Refused, "data_type mx_fp"),
    (autoawq, ROUND | {"extra_config": {"o_proj": {"bits": 8}}}, Refused, "gives o_proj a scheme of its own"),
    (autoawq, ROUND | {"extra_config": {"o_proj": {"group_size": 32}}}, Refused, "gives o_proj a scheme of its own"),
    (autoawq, ROUND | {"extra_config": ["o_proj"]}, BadCheckpoint, "extra_config is a list"),
    (autoawq, {"quant_method": "auto-round", "packing_format": 1}, BadCheckpoint, "packing_format is the number 1"),
]


@pytest.mark.parametrize(("format", "said", "error", "says"), CONTRADICTIONS, ids=[row[3] for row in CONTRADICTIONS])
def test_contradictions(format: Format, said: dict[str, Any], error: type[DraftconvError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        format.read(said, {})
    assert type(caught.value) is error


def test_gptq_names_what_is_quantized() -> None:
    told = samples.declared("int4")
    fused = ["self_attn.qkv_proj", "self_attn.qkv_proj", "mlp.down_proj"]
    config = gptq.declare(told, fused).config
    assert config["modules_in_block_to_quantize"] == ["self_attn.qkv_proj", "mlp.down_proj"]
    assert (config["group_size"], config["sym"], config["desc_act"], config["lm_head"]) == (-1, True, False, False)
    assert gptq.declare(replace(told, head=True), ["lm_head"]).config["lm_head"] is True
    assert "dynamic" not in config
    with pytest.raises(UsageError, match="names what is quantized or what is not, and neither is given"):
        gptq.declare(told, [])


def test_gptq_names_what_is_not_for_sglang() -> None:
    told = replace(samples.declared("int4"), ignore=(r"-:.*\bfc$",))
    config = gptq.declare(told, []).config
    assert config["dynamic"] == {r"-:.*\bfc$": {}}
    assert "modules_in_block_to_quantize" not in config
    assert gptq.read(config, {}) == told


def test_the_two_headers_of_autoawq() -> None:
    said = Declared("int4", "group", 128, None, (".*fc",))
    plain_header = autoawq.declare(said, ["o_proj"]).config
    assert plain_header == AWQ | {"modules_to_not_convert": [".*fc"], "lm_head": False}
    rounded = autoawq.declare(samples.with_style(said, "auto-round"), []).config
    assert rounded["sym"] is True
    assert rounded["extra_config"] == {".*fc": {"bits": 16, "data_type": "float"}}
    with pytest.raises(UsageError, match="AutoAWQ has no style gemv"):
        autoawq.declare(samples.with_style(said, "gemv"), [])
