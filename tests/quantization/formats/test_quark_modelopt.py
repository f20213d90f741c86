"""What holds of every format of Quark and ModelOpt: `store` and `load` are inverse, `parts` foretells them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftconv.errors import BadCheckpoint, DraftconvError, Refused, UsageError
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Declared, Format
from draftconv.quantization.formats.modelopt_awq import MODELOPT_AWQ
from draftconv.quantization.formats.modelopt_config import UNQUANTIZED
from draftconv.quantization.formats.modelopt_fp8 import MODELOPT_FP8
from draftconv.quantization.formats.modelopt_nvfp4 import MODELOPT_NVFP4
from draftconv.quantization.formats.quark_int4 import QUARK_INT4
from draftconv.quantization.formats.quark_mxfp4 import QUARK_MXFP4
from draftconv.quantization.rounding import dequantize
from draftconv.quantization.scheme import InputScheme, Scheme, WeightScheme
from tests.quantization.formats.weights import described, equal, random_weight, same

INT8_TOKEN = InputScheme("int8", "token", True)
FP8_TOKEN = InputScheme("fp8", "token", True)
FP8_STATIC = InputScheme("fp8", "tensor", False)
NVFP4_STATIC = InputScheme("nvfp4", "tensor", False)

CHANNEL = WeightScheme("int4", "channel", "max/7.5", "weight")
GROUP = WeightScheme("int4", "group", "max/7.5", "weight", 16)
AWQ = WeightScheme("int4", "group", "max/7", "F32", 16)
FP8_TENSOR = WeightScheme("fp8", "tensor", "max/448", "F32")
FP8_CHANNEL = WeightScheme("fp8", "channel", "max/448", "F32")
NVFP4 = WeightScheme("nvfp4", "group", "max/6", "F8_E4M3", 16)
MXFP4 = WeightScheme("mxfp4", "group", "max/3.5", "E8M0", 32)

HELD: list[tuple[Format, Scheme]] = [
    (QUARK_INT4, Scheme(CHANNEL)),
    (QUARK_INT4, Scheme(CHANNEL, INT8_TOKEN)),
    (QUARK_INT4, Scheme(GROUP)),
    (QUARK_INT4, Scheme(GROUP, FP8_TOKEN)),
    (QUARK_INT4, Scheme(replace(GROUP, group=32))),
    (QUARK_MXFP4, Scheme(MXFP4, FP8_STATIC)),
    (MODELOPT_AWQ, Scheme(AWQ)),
    (MODELOPT_AWQ, Scheme(AWQ, FP8_STATIC)),
    (MODELOPT_FP8, Scheme(FP8_TENSOR, FP8_STATIC)),
    (MODELOPT_FP8, Scheme(FP8_CHANNEL, FP8_TOKEN)),
    (MODELOPT_NVFP4, Scheme(NVFP4, NVFP4_STATIC)),
]
held = pytest.mark.parametrize(("format", "scheme"), HELD, ids=lambda x: x.id if isinstance(x, Format) else str(x))
every = pytest.mark.parametrize(
    "format", [QUARK_INT4, QUARK_MXFP4, MODELOPT_AWQ, MODELOPT_FP8, MODELOPT_NVFP4], ids=lambda f: f.id
)
MODULES = ("model.midlayer.self_attn.q_proj", "model.midlayer.mlp.down_proj")


def declared(scheme: Scheme, style: str | None = None, ignore: tuple[str, ...] = ("lm_head", "fc")) -> Declared:
    weights = scheme.weights
    return Declared(weights.dtype, weights.granularity, weights.group, scheme.inputs, ignore, style)


@every
def test_it_is_found_by_id(format: Format) -> None:
    assert formats()[format.id] is format
    assert format.title and format.source and format.styles


@held
@settings(max_examples=15)
@given(data=st.data())
def test_store_and_load_are_inverse(format: Format, scheme: Scheme, data: st.DataObject) -> None:
    shape = 8 * data.draw(st.integers(1, 4)), 32 * data.draw(st.integers(1, 3))
    dtype = data.draw(st.sampled_from(["BF16", "F16", "F32"]))
    style = data.draw(st.sampled_from(format.styles))
    weight = random_weight(scheme, shape, dtype, data.draw(st.integers(0, 1 << 20)))
    stored = format.store(weight, style)
    assert described(stored) == set(format.parts(shape, scheme, dtype))
    back = format.load(stored, declared(scheme, style), dtype)
    assert same(back, weight)
    assert equal(format.store(back, style), stored)


@held
def test_one_wrong_bit_is_another_weight(format: Format, scheme: Scheme) -> None:
    weight = random_weight(scheme, (16, 64), "BF16")
    stored = format.store(weight)
    stored["weight"] = stored["weight"].clone()
    stored["weight"].view(torch.uint8).flatten()[5] ^= 0x10
    assert not same(format.load(stored, declared(scheme, format.styles[0]), "BF16"), weight)


@held
def test_a_config_is_read_as_it_was_declared(format: Format, scheme: Scheme) -> None:
    for style in format.styles:
        wanted = declared(scheme, style)
        declaration = format.declare(wanted, MODULES)
        json.dumps([declaration.config, declaration.sidecars])
        found = format.read(declaration.config, declaration.sidecars)
        assert found is not None
        if style == "trtllm":
            wanted = replace(wanted, ignore=(*UNQUANTIZED, "fc"))
        assert found == wanted
        assert format.declare(found, MODULES) == declaration
        for other in formats().values():
            if other is not format:
                assert other.read(declaration.config, declaration.sidecars) is None


@held
@pytest.mark.parametrize("drop", ["weight", "weight_scale", "weight_scale_2", "input_scale"])
def test_a_missing_tensor_is_named(format: Format, scheme: Scheme, drop: str) -> None:
    stored = format.store(random_weight(scheme, (16, 64), "BF16"))
    if stored.pop(drop, None) is not None:
        with pytest.raises(BadCheckpoint, match=drop):
            format.load(stored, declared(scheme, format.styles[0]), "BF16")


@held
def test_a_wrong_shape_or_dtype_is_named(format: Format, scheme: Scheme) -> None:
    stored = format.store(random_weight(scheme, (16, 64), "BF16"))
    for suffix, tensor in stored.items():
        for wrong in (tensor[None], tensor.to(torch.int64), tensor.new_empty([0, *tensor.shape[1:]])):
            with pytest.raises(BadCheckpoint, match=suffix):
                format.load({**stored, suffix: wrong}, declared(scheme, format.styles[0]), "BF16")
    with pytest.raises(BadCheckpoint, match="weight_g_idx"):
        format.load({**stored, "weight_g_idx": torch.zeros(3)}, declared(scheme, format.styles[0]), "BF16")


@held
def test_a_bias_is_in_nobody_s_way(format: Format, scheme: Scheme) -> None:
    weight = random_weight(scheme, (16, 64), "BF16")
    stored = {**format.store(weight), "bias": torch.zeros(16)}
    assert same(format.load(stored, declared(scheme, format.styles[0]), "BF16"), weight)


@held
def test_a_group_that_the_tensors_deny(format: Format, scheme: Scheme) -> None:
    if scheme.weights.group:
        stored = format.store(random_weight(scheme, (16, 64), "BF16"))
        if format is not MODELOPT_NVFP4:  # its group is no part of what is loaded
            with pytest.raises(BadCheckpoint, match=r"scale|groups of 8"):
                format.load(stored, replace(declared(scheme, format.styles[0]), group=8), "BF16")


@every
def test_what_it_does_not_hold_is_refused(format: Format) -> None:
    for _, scheme in HELD:
        if (format, scheme) not in HELD and scheme.weights.dtype != "int4":
            with pytest.raises(Refused, match="has no"):
                format.parts((16, 64), scheme, "BF16")
            with pytest.raises(Refused, match="cannot declare"):
                format.declare(declared(scheme), MODULES)


@every
def test_a_style_that_is_not_written(format: Format) -> None:
    scheme = next(scheme for known, scheme in HELD if known is format)
    with pytest.raises(UsageError, match="not written in style file-to-file"):
        format.store(random_weight(scheme, (16, 64), "BF16"), "file-to-file")
    with pytest.raises(UsageError, match="not written in style file-to-file"):
        format.declare(declared(scheme, "file-to-file"), MODULES)


@held
def test_static_activations_need_a_scale(format: Format, scheme: Scheme) -> None:
    if scheme.inputs is not None and not scheme.inputs.dynamic and format is not MODELOPT_AWQ:
        weight = random_weight(scheme, (16, 64), "BF16")
        with pytest.raises(UsageError, match="scale of activations"):
            format.store(replace(weight, input_scale=None))
        for value in (0.0, float("nan"), float("inf"), -1.0):
            with pytest.raises(BadCheckpoint, match=r"input_scale is .*, not a scale"):
                format.load(
                    {**format.store(weight), "input_scale": torch.tensor(value)}, declared(scheme, format.styles[0]), ""
                )


HOSTILE: list[Any] = [None, 1, -1, 1e400, True, "x" * 5000, [], [None], {}, {"a": []}, [[[]]], "int4", "reorder"]


@held
@settings(max_examples=60)
@given(data=st.data())
def test_hostile_configs_give_clean_errors(format: Format, scheme: Scheme, data: st.DataObject) -> None:
    declaration = format.declare(declared(scheme, data.draw(st.sampled_from(format.styles))), MODULES)
    document = json.loads(json.dumps({"config": declaration.config, "sidecars": declaration.sidecars}))
    node: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if node is document or (isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans())):
            node = node[key]
            if not node:
                return
            continue
        node[key] = data.draw(st.sampled_from(HOSTILE))
        break
    if not all(isinstance(value, dict) for value in document["sidecars"].values()):
        return  # a file that is no object never gets here
    for each in (format, *formats().values()):
        try:
            each.read(document["config"], document["sidecars"])
        except DraftconvError as error:
            assert len(str(error)) < 2500


@held
def test_dequantized_weights_survive(format: Format, scheme: Scheme) -> None:
    weight = random_weight(scheme, (16, 64), "BF16")
    back = format.load(format.store(weight), declared(scheme, format.styles[0]), "BF16")
    assert torch.equal(dequantize(back.quantized), dequantize(weight.quantized))
