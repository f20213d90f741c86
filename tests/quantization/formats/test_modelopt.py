"""ModelOpt's formats against bytes of nvidia-modelopt and against plain Python, and its two headers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftconv.checkpoint import QUANT_FILE
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.quantization.formats.base import Declared, DeclaredPart, Weight
from draftconv.quantization.formats.gptq import gptq
from draftconv.quantization.formats.modelopt_awq import MODELOPT_AWQ, fp8_scale
from draftconv.quantization.formats.modelopt_config import FP8_STATIC
from draftconv.quantization.formats.modelopt_fp8 import MODELOPT_FP8
from draftconv.quantization.formats.modelopt_nvfp4 import MODELOPT_NVFP4
from draftconv.quantization.rounding import RoundedWeight, dequantize, quantize
from draftconv.quantization.scheme import InputScheme, Scheme, WeightScheme
from tests.quantization.formats.weights import bits, equal, random_weight, vector

STATIC = InputScheme("fp8", "tensor", False)
TOKEN = InputScheme("fp8", "token", True)
NVFP4_STATIC = InputScheme("nvfp4", "tensor", False)
AWQ = WeightScheme("int4", "group", "max/7", "F32", 16)
NVFP4 = Scheme(WeightScheme("nvfp4", "group", "max/6", "F8_E4M3", 16), NVFP4_STATIC)
Q = "model.midlayer.self_attn.q_proj"


# ── bytes of nvidia-modelopt ───────────────────────────────────────────────────────


def sidecars(row: dict[str, Any]) -> dict[str, Any]:
    return {QUANT_FILE: row["hf_quant_config"]}


@pytest.mark.parametrize(
    ("name", "inputs", "smoothed"),
    [
        ("INT4_AWQ_CFG", None, True),
        ("INT4_BLOCKWISE_WEIGHT_ONLY_CFG", None, False),
        ("W4A8_AWQ_BETA_CFG", STATIC, True),
    ],
)
def test_real_awq(name: str, inputs: InputScheme | None, smoothed: bool) -> None:
    row = vector(f"modelopt_{name}")
    declared = MODELOPT_AWQ.read({}, sidecars(row))
    assert declared == Declared("int4", "group", 32, inputs, ("embed_tokens", "fc", "lm_head"), "plain")
    stored: dict[str, Tensor] = {
        "weight": torch.tensor(row["weight_stored"], dtype=torch.uint8),
        "weight_scale": torch.tensor(row["weight_scale"]),
    }
    if smoothed:
        stored["pre_quant_scale"] = torch.tensor(row["pre_quant_scale"]).to(torch.bfloat16)
    if inputs:
        stored |= {key: torch.tensor(row[key]) for key in ("weight_scale_2", "input_scale")}
    weight = MODELOPT_AWQ.load(stored, declared, "BF16")
    assert weight.quantized.qvalues.tolist() == row["q"]
    floats = dequantize(weight.quantized)
    if weight.pre_quant_scale is not None:
        floats = floats * weight.pre_quant_scale.float()
    assert torch.allclose(floats, torch.tensor(row["dequantized"]), rtol=1e-6, atol=0)
    back = MODELOPT_AWQ.store(weight)
    if not smoothed:  # what ModelOpt's header announces and its exporter leaves out
        assert back["pre_quant_scale"].tolist() == [1.0] * 128
        del back["pre_quant_scale"]
    assert equal(back, stored)
    assert MODELOPT_AWQ.declare(declared, ()).sidecars[QUANT_FILE] == row["hf_quant_config"]


@pytest.mark.parametrize(("name", "inputs"), [("FP8_DEFAULT_CFG", STATIC), ("FP8_PER_CHANNEL_PER_TOKEN_CFG", TOKEN)])
def test_real_fp8(name: str, inputs: InputScheme) -> None:
    row = vector(f"modelopt_{name}")
    declared = MODELOPT_FP8.read({}, sidecars(row))
    assert declared is not None and declared.inputs == inputs
    stored = {
        "weight": torch.tensor(row["weight_stored"]).to(torch.float8_e4m3fn),
        "weight_scale": torch.tensor(row["weight_scale"]),
    }
    if inputs == STATIC:
        stored["input_scale"] = torch.tensor(row["input_scale"])
    weight = MODELOPT_FP8.load(stored, declared, "BF16")
    assert weight.quantized.qvalues.float().tolist() == row["q"]
    assert equal(MODELOPT_FP8.store(weight), stored)
    assert MODELOPT_FP8.declare(declared, ()).sidecars[QUANT_FILE] == row["hf_quant_config"]


def test_int8_is_nobody_s() -> None:
    row = vector("modelopt_INT8_WEIGHT_ONLY_CFG")
    for format in (MODELOPT_AWQ, MODELOPT_FP8, MODELOPT_NVFP4):
        assert format.read({}, sidecars(row)) is None


# ── plain Python ───────────────────────────────────────────────────────────────────


def test_awq_two_neighbouring_outputs_share_a_byte() -> None:
    weight = random_weight(Scheme(AWQ), (6, 32), "BF16")
    qvalues = weight.quantized.qvalues.tolist()
    assert MODELOPT_AWQ.store(weight)["weight"].tolist() == [
        [(qvalues[2 * r][c] & 0xF) | (qvalues[2 * r + 1][c] & 0xF) << 4 for c in range(32)] for r in range(3)
    ]


def test_nvfp4_two_neighbouring_inputs_share_a_byte() -> None:
    weight = random_weight(NVFP4, (4, 32), "BF16")
    stored = MODELOPT_NVFP4.store(weight)
    assert stored["weight"].tolist() == [
        [row[c] | row[c + 1] << 4 for c in range(0, 32, 2)] for row in weight.quantized.qvalues.tolist()
    ]
    assert stored["weight_scale_2"].item() == weight.quantized.unit.item()


def test_the_fp8_scale_of_int4_is_modelopt_s() -> None:
    torch.manual_seed(1)
    for _ in range(50):
        floats = torch.randn(8, 32)
        found = fp8_scale(quantize(floats, AWQ))
        assert found.dtype == torch.float32
        assert found.item() == (floats.abs().amax() / 448).item()


def test_the_fp8_scale_covers_code_minus_8() -> None:
    qvalues = torch.full((2, 16), -8, dtype=torch.int8)
    weight = Weight(RoundedWeight("int4", qvalues, torch.ones(2, 1), torch.ones(())), "BF16", torch.ones(()))
    assert MODELOPT_AWQ.store(weight)["weight_scale_2"].item() == torch.tensor(8 / 448).item()
    shared = replace(weight, fp8_scale=torch.tensor(0.5))
    assert MODELOPT_AWQ.store(shared)["weight_scale_2"].item() == 0.5
    with pytest.raises(UsageError, match="too small") as caught:
        MODELOPT_AWQ.store(replace(weight, fp8_scale=torch.tensor(7 / 448)))
    assert "E4M3" in caught.value.why


def test_a_weight_of_zeros_has_an_fp8_scale() -> None:
    quantized = quantize(torch.zeros(2, 16), AWQ)
    assert MODELOPT_AWQ.store(Weight(quantized, "BF16", torch.ones(())))["weight_scale_2"].item() == 1


def test_identity_smoothing_is_written_and_read_as_none() -> None:
    weight = random_weight(Scheme(AWQ), (4, 32), "F16")
    stored = MODELOPT_AWQ.store(weight)
    assert stored["pre_quant_scale"].dtype == torch.float16
    assert stored["pre_quant_scale"].tolist() == [1.0] * 32
    declared = Declared("int4", "group", 16)
    assert MODELOPT_AWQ.load(stored, declared, "BF16").pre_quant_scale is None
    assert MODELOPT_AWQ.load(stored, declared, "BF16").dtype == "F16"
    smoothed = replace(weight, pre_quant_scale=(torch.arange(32) / 16).clamp_min(0.5).half())
    back = MODELOPT_AWQ.load(MODELOPT_AWQ.store(smoothed), declared, "BF16")
    assert bits(back.pre_quant_scale) == bits(smoothed.pre_quant_scale)


# ── broken and refused ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shape", "weights", "what"),
    [
        ((7, 32), AWQ, "7 outputs"),
        ((8, 24), AWQ, "24 inputs are no multiple of the group of 16"),
        ((8, 32), WeightScheme("int4", "channel", "max/7", "F32"), "has no weights INT4 per channel"),
    ],
)
def test_awq_cannot_hold(shape: tuple[int, int], weights: WeightScheme, what: str) -> None:
    with pytest.raises(Refused, match=what):
        MODELOPT_AWQ.parts(shape, Scheme(weights), "BF16")


def test_awq_refuses_odd_outputs_when_it_stores_too() -> None:
    qvalues = torch.zeros(7, 16, dtype=torch.int8)
    with pytest.raises(Refused, match="7 outputs"):
        MODELOPT_AWQ.store(Weight(RoundedWeight("int4", qvalues, torch.ones(7, 1), torch.ones(())), "BF16"))


def test_nvfp4_inputs_come_by_sixteen() -> None:
    with pytest.raises(Refused, match="24 inputs are no multiple of 16"):
        MODELOPT_NVFP4.parts((4, 24), NVFP4, "BF16")
    with pytest.raises(BadCheckpoint, match="24 inputs, no multiple of 16"):
        MODELOPT_NVFP4.load({"weight": torch.zeros(4, 12, dtype=torch.uint8)}, Declared("nvfp4", "group", 16), "BF16")


def test_w4a8_without_its_declaration() -> None:
    stored = MODELOPT_AWQ.store(random_weight(Scheme(AWQ, STATIC), (4, 32), "BF16"))
    with pytest.raises(BadCheckpoint, match="has no input_scale, weight_scale_2"):
        MODELOPT_AWQ.load(stored, Declared("int4", "group", 16), "BF16")


def test_the_group_comes_from_the_tensors_where_config_json_leaves_it_out() -> None:
    stored = MODELOPT_AWQ.store(random_weight(Scheme(AWQ), (4, 32), "BF16"))
    assert MODELOPT_AWQ.resolve(stored, Declared("int4", "group")).group == 16
    found = MODELOPT_AWQ.read({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "ignore": ["lm_head"]}, {})
    assert found == Declared("int4", "group", None, None, ("lm_head",), "plain")


def test_fp8_per_channel_has_no_static_activations() -> None:
    weight = random_weight(Scheme(WeightScheme("fp8", "channel", "max/448", "F32"), TOKEN), (8, 16), "BF16")
    with pytest.raises(Refused, match="no static activations beside scales per channel"):
        MODELOPT_FP8.store(replace(weight, input_scale=torch.ones(())))
    stored = MODELOPT_FP8.store(weight)
    with pytest.raises(BadCheckpoint, match="weight_scale is"):
        MODELOPT_FP8.load({**stored, "weight_scale": torch.ones(())}, Declared("fp8", "channel"), "BF16")


# ── headers ────────────────────────────────────────────────────────────────────────

W4A8 = Declared("int4", "group", 128, STATIC, ("*embed_tokens*",), "trtllm")


def test_tensorrt_llm_gets_every_module_by_name() -> None:
    declaration = MODELOPT_AWQ.declare(W4A8, [Q])
    entry = {"quant_algo": "W4A8_AWQ", "group_size": 128, "has_zero_point": False, "pre_quant_scale": True}
    excluded = ["lm_head", "model.fc", "*fc", "re:.*fc", "*embed_tokens*"]
    assert declaration.sidecars[QUANT_FILE]["quantization"] == {
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": None,
        "exclude_modules": excluded,
        "quantized_layers": {Q: entry},
    }
    assert declaration.config["quantized_layers"] == {Q: entry}
    assert declaration.config["ignore"] == excluded
    assert declaration.config["quant_method"] == "modelopt"


def test_a_quantized_fc_is_not_excluded() -> None:
    declaration = MODELOPT_AWQ.declare(W4A8, [Q, "model.fc"])
    assert declaration.config["ignore"] == ["lm_head", "*embed_tokens*"]


def test_a_header_needs_modules_and_a_group() -> None:
    with pytest.raises(UsageError, match="has to name every quantized module"):
        MODELOPT_AWQ.declare(W4A8, [])
    with pytest.raises(UsageError, match="size of groups"):
        MODELOPT_AWQ.declare(replace(W4A8, group=None), [Q])
    with pytest.raises(BadCheckpoint, match="group_size is 32"):
        MODELOPT_NVFP4.declare(Declared("nvfp4", "group", 32, NVFP4_STATIC), [Q])


def header(declared: Declared = W4A8) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json's entry and the sidecars, free to be spoiled."""
    declaration = MODELOPT_AWQ.declare(declared, [Q])
    config, files = json.loads(json.dumps([declaration.config, declaration.sidecars]))
    return config, files


def test_either_header_is_enough() -> None:
    config, files = header()
    both = MODELOPT_AWQ.read(config, files)
    assert both is not None
    assert MODELOPT_AWQ.read({}, files) == MODELOPT_AWQ.read(config, {}) == both
    legacy: dict[str, Any] = files[QUANT_FILE]
    assert MODELOPT_AWQ.read(legacy, {}) == both  # the legacy form inside config.json
    assert MODELOPT_AWQ.read({}, {}) is None


@pytest.mark.parametrize("spoil", ["algorithm", "group", "modules", "ignore"])
def test_headers_that_contradict_each_other(spoil: str) -> None:
    config, files = header()
    match spoil:
        case "algorithm":
            config["quantized_layers"][Q]["quant_algo"] = "W4A16_AWQ"
        case "group":
            config["quantized_layers"][Q]["group_size"] = 64
        case "modules":
            config["quantized_layers"]["model.fc"] = config["quantized_layers"][Q]
        case "ignore":
            config["ignore"].append("model*")
    with pytest.raises(BadCheckpoint, match="contradict each other"):
        MODELOPT_AWQ.read(config, files)


@pytest.mark.parametrize(
    ("entry", "error", "what"),
    [
        ({"quant_algo": "W4A16_AWQ", "has_zero_point": True}, Refused, "has_zero_point is true"),
        ({"quant_algo": "W4A16_AWQ", "group_size": 0}, BadCheckpoint, "group_size is 0, not a size"),
        ({"quant_algo": ["W4A16_AWQ"]}, BadCheckpoint, "quant_algo is a list"),
        ({"quant_algo": "W4A16_AWQ", "exclude_modules": {}}, BadCheckpoint, "not a list of names"),
        ({"quant_algo": "MIXED_PRECISION"}, BadCheckpoint, "without quantized_layers"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {Q: 4}}, BadCheckpoint, f"{Q} is no object"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {Q: {}}}, BadCheckpoint, "has no quant_algo"),
        (
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "W4A16_AWQ", "group_size": 64}},
            },
            Refused,
            "gives modules different algorithms",
        ),
    ],
)
def test_headers_that_are_not_taken(entry: dict[str, object], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        MODELOPT_AWQ.read({}, {QUANT_FILE: {"producer": {"name": "modelopt"}, "quantization": entry}})


def test_groups_where_there_are_none() -> None:
    for algorithm, format in (("FP8", MODELOPT_FP8), ("NVFP4", MODELOPT_NVFP4)):
        entry = {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 128}
        with pytest.raises(BadCheckpoint, match="group_size is 128"):
            format.read(entry, {})


def test_a_kv_cache_algorithm_alone_quantizes_no_weight() -> None:
    assert (
        MODELOPT_FP8.read({}, {QUANT_FILE: {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}})
        is None
    )


# ── several schemes ────────────────────────────────────────────────────────────────


def test_several_algorithms_are_told_module_by_module() -> None:
    layer = Declared("nvfp4", "group", 16, NVFP4_STATIC, ("lm_head",))
    head = Declared("fp8", "tensor", None, FP8_STATIC, ("lm_head",))
    names = ("model.layers.8.mlp.down_proj", "model.layers.8.self_attn.o_proj")
    parts = [DeclaredPart(MODELOPT_NVFP4, layer, names), DeclaredPart(MODELOPT_FP8, head, ("model.fc",))]
    said = MODELOPT_NVFP4.declare_parts(parts)
    assert said.config["quant_algo"] == "MIXED_PRECISION"
    listed = said.config["quantized_layers"]
    assert isinstance(listed, dict)
    assert {name: entry["quant_algo"] for name, entry in listed.items()} == {
        **dict.fromkeys(names, "NVFP4"), "model.fc": "FP8"
    }  # fmt: skip
    excluded = said.config["ignore"]
    assert isinstance(excluded, list) and "lm_head" in excluded and "model.fc" not in excluded
    for header in ((said.config, said.sidecars), ({}, said.sidecars), (said.config, {})):
        (nvfp4,), (fp8,) = (fmt.read_parts(*header) for fmt in (MODELOPT_NVFP4, MODELOPT_FP8))
        assert (nvfp4.dtype, nvfp4.group, set(nvfp4.targets)) == ("nvfp4", 16, set(names))
        assert (fp8.dtype, fp8.inputs, fp8.targets) == ("fp8", FP8_STATIC, ("model.fc",))
        assert MODELOPT_AWQ.read_parts(*header) == ()
    with pytest.raises(Refused, match="different algorithms"):
        MODELOPT_FP8.read(said.config, said.sidecars)
    with pytest.raises(UsageError, match="has to name every quantized module"):
        MODELOPT_NVFP4.declare_parts([parts[0], DeclaredPart(MODELOPT_FP8, head)])
    with pytest.raises(Refused, match="are not told of in one config"):
        MODELOPT_NVFP4.declare_parts([parts[0], DeclaredPart(gptq, Declared("int4", "group", 128), ("fc",))])


def test_files_that_give_a_module_two_algorithms_contradict_each_other() -> None:
    parts = [
        DeclaredPart(MODELOPT_NVFP4, Declared("nvfp4", "group", 16, NVFP4_STATIC), ("a", "b")),
        DeclaredPart(MODELOPT_FP8, Declared("fp8", "tensor", None, FP8_STATIC), ("c",)),
    ]
    said, other = (MODELOPT_NVFP4.declare_parts(parts), MODELOPT_NVFP4.declare_parts(
        [replace(parts[0], modules=("a",)), replace(parts[1], modules=("b", "c"))]))  # fmt: skip
    with pytest.raises(BadCheckpoint, match="contradict each other"):
        MODELOPT_FP8.read_parts(said.config, other.sidecars)
