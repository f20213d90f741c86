"""nvidia-modelopt's own bytes against draftconv's."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.quantization import scales
from draftconv.quantization.backends import backend, modelopt
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.rounding import quantize
from draftconv.quantization.scheme import SCALE_RULES, InputScheme, ScaleRuleName, Scheme, WeightScheme
from tests.quantization.backends.drafters import LINEARS, PREFIX, model, prompts, weights
from tests.quantization.backends.real import every_dtype, hard, identical, needs, same

pytestmark = needs("modelopt")

GROUP = WeightScheme("int4", "group", "max/7", "F32", 32)
CHANNEL = WeightScheme("int4", "channel", "max/7", "F32")
INT8 = WeightScheme("int8", "channel", "max/127", "F32")
FP8 = WeightScheme("fp8", "channel", "max/448", "F32")
FP8_TENSOR = WeightScheme("fp8", "tensor", "max/448", "F32")
NVFP4 = WeightScheme("nvfp4", "group", "max/6", "F8_E4M3", 16)
FP8_STATIC = InputScheme("fp8", "tensor", dynamic=False)

every_scheme = pytest.mark.parametrize("scheme", [GROUP, CHANNEL, INT8, FP8, FP8_TENSOR, NVFP4], ids=str)


@every_dtype
@every_scheme
def test_native_has_modelopt_s_bits(scheme: WeightScheme, dtype: torch.dtype) -> None:
    weight = hard(dtype, scheme)
    assert identical(quantize(weight, scheme), backend("modelopt", scheme)(weight, scheme))


@pytest.mark.parametrize("scheme", [FP8_TENSOR, NVFP4], ids=str)
def test_rows_of_a_weight_take_the_peak_of_the_whole(scheme: WeightScheme) -> None:
    weight = hard(torch.bfloat16, scheme)[20:]
    peak = torch.tensor(9024.0)
    found = backend("modelopt", scheme)(weight, scheme, whole=peak)
    assert identical(quantize(weight, scheme, whole=peak), found)
    assert not identical(quantize(weight, scheme), found)


def test_an_odd_row_needs_no_other() -> None:
    weight = hard(torch.bfloat16, GROUP)[:13]
    assert identical(quantize(weight, GROUP), backend("modelopt", GROUP)(weight, GROUP))


@pytest.mark.parametrize(("scheme", "rule"), [(GROUP, "max/7"), (INT8, "max/127"), (FP8, "max/448")], ids=str)
def test_multiplying_by_the_reciprocal_would_be_noticed(
    scheme: WeightScheme, rule: ScaleRuleName, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = hard(torch.float32, scheme)
    theirs = backend("modelopt", scheme)(weight, scheme)
    monkeypatch.setitem(vars(scales)["SCALE_RULES"], rule, replace(SCALE_RULES[rule], reciprocal=True))
    ours = quantize(weight, scheme)
    assert same(ours.scale, theirs.scale)
    assert not same(ours.qvalues, theirs.qvalues)


def test_another_divisor_would_be_noticed() -> None:
    weight = hard(torch.bfloat16, GROUP)
    theirs = backend("modelopt", GROUP)(weight, GROUP)
    assert not identical(quantize(weight, replace(GROUP, scale_rule="max/7.5")), theirs)


def test_what_is_not_finite_is_refused_alike() -> None:
    weight = hard(torch.float32, GROUP)
    weight[9, 9] = torch.inf
    with pytest.raises(BadCheckpoint, match="q_proj holds NaN or infinite values"):
        backend("modelopt", GROUP)(weight, GROUP, name="q_proj")


# ── calibrated ─────────────────────────────────────────────────────────────────────


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """Activations [24, 96] whose channels differ a hundredfold, which is what smoothing is for."""
    random = torch.Generator().manual_seed(11)
    return [(torch.randn(24, 96, generator=random) * torch.logspace(-1, 1, 96)).to(dtype) for _ in range(3)]


def fused(dtype: torch.dtype) -> dict[str, Tensor]:
    ordinary = hard(dtype, GROUP)[32:]
    return {"q_proj": ordinary[:16], "k_proj": ordinary[16:24], "v_proj": 3 * ordinary[24:]}


@pytest.mark.parametrize("activations", [None, FP8_STATIC], ids=str)
def test_awq_of_native_given_modelopt_s_smoothing(activations: InputScheme | None) -> None:
    """In float32, where the stored factors are those that ModelOpt smoothed with."""
    found = modelopt.calibrate(fused(torch.float32), Scheme(GROUP, activations), inputs(torch.float32))
    form = formats()["modelopt-awq"]
    peaks = []
    for name, weight in fused(torch.float32).items():
        theirs = found[name]
        assert theirs.pre_quant_scale is not None
        assert theirs.pre_quant_scale.std() > 0.01
        smoothed = weight * (1 / theirs.pre_quant_scale)
        peaks.append(smoothed.abs().amax())
        assert identical(quantize(smoothed, GROUP), theirs.quantized)
        assert not identical(quantize(weight, GROUP), theirs.quantized)
        ours = Weight(quantize(smoothed, GROUP), "F32", theirs.input_scale, theirs.pre_quant_scale, theirs.fp8_scale)
        stored, wanted = form.store(ours), form.store(theirs)
        assert all(same(stored[suffix], wanted[suffix]) for suffix in wanted)
        if activations is not None:
            assert theirs.input_scale is not None
            peak = max((x * theirs.pre_quant_scale).abs().amax() for x in inputs(torch.float32))
            assert theirs.input_scale == peak / 448
    if activations is not None:
        scale = found["q_proj"].fp8_scale
        assert scale is not None
        assert scale == torch.stack(peaks).amax() / 448


def test_static_fp8_of_native_given_modelopt_s_peak() -> None:
    found = modelopt.calibrate(fused(torch.bfloat16), Scheme(FP8_TENSOR, FP8_STATIC), inputs(torch.bfloat16))
    whole = torch.stack([weight.abs().amax() for weight in fused(torch.bfloat16).values()]).amax().float()
    for name, weight in fused(torch.bfloat16).items():
        assert identical(quantize(weight, FP8_TENSOR, whole=whole), found[name].quantized)
        assert found[name].input_scale == torch.stack(inputs(torch.bfloat16)).abs().amax().float() / 448
        assert found[name].pre_quant_scale is None


def test_fused_weights_share_what_engines_join() -> None:
    found = modelopt.calibrate(fused(torch.bfloat16), Scheme(GROUP, FP8_STATIC), inputs(torch.bfloat16))
    first, *others = found.values()
    for other in others:
        for one, two in (
            (first.input_scale, other.input_scale),
            (first.fp8_scale, other.fp8_scale),
            (first.pre_quant_scale, other.pre_quant_scale),
        ):
            assert one is not None and two is not None
            assert same(one, two)


def test_calibration_that_cannot_be_is_refused() -> None:
    with pytest.raises(Refused, match="does not calibrate weights FP8 E4M3 per channel"):
        modelopt.calibrate(fused(torch.float32), Scheme(FP8, FP8_STATIC), inputs(torch.float32))
    with pytest.raises(UsageError, match="nothing to calibrate on"):
        modelopt.calibrate(fused(torch.float32), Scheme(GROUP), [])


# ── files ──────────────────────────────────────────────────────────────────────────


def exported(
    directory: Path, name: str, dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """Tensors, config.json and hf_quant_config.json that ModelOpt writes for a whole model."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from safetensors.torch import load_file

    config = copy.deepcopy(getattr(mtq, name))
    for entry in config["quant_cfg"]:
        settings = entry.get("cfg") or {}
        for one in settings if isinstance(settings, list) else [settings]:
            if entry["quantizer_name"] == "*weight_quantizer" and "block_sizes" in one:
                one["block_sizes"][-1] = 32
    quantized = mtq.quantize(model(dtype), config, lambda m: m(prompts()))
    export_hf_checkpoint(quantized, dtype=dtype, export_dir=directory)
    read = [json.loads((directory / file).read_text()) for file in ("config.json", "hf_quant_config.json")]
    return load_file(directory / "model.safetensors"), read[0], read[1]


def parts(tensors: Mapping[str, Tensor], module: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{module}."): t for name, t in tensors.items() if name.startswith(f"{module}.")}


def test_the_format_is_modelopt_s_int4_export(tmp_path: Path) -> None:
    tensors, config, sidecar = exported(tmp_path, "INT4_BLOCKWISE_WEIGHT_ONLY_CFG", torch.bfloat16)
    form = formats()["modelopt-awq"]
    for module, weight in weights(model(torch.bfloat16)).items():
        theirs = parts(tensors, module)
        ours = form.store(Weight(quantize(weight, GROUP), "BF16"))
        assert ours.keys() - theirs.keys() == {"pre_quant_scale"}  # announced in the header, and not written
        assert all(same(ours[suffix], theirs[suffix]) for suffix in theirs)
    declared = form.read(config["quantization_config"], {"hf_quant_config.json": sidecar})
    assert declared is not None
    assert (declared.dtype, declared.inputs) == ("int4", None)
    loaded = form.load(parts(tensors, LINEARS[0]), declared, "BF16")
    assert identical(loaded.quantized, quantize(weights(model(torch.bfloat16))[LINEARS[0]], GROUP))


def test_the_format_is_modelopt_s_fp8_export_per_channel(tmp_path: Path) -> None:
    tensors, config, sidecar = exported(tmp_path, "FP8_PER_CHANNEL_PER_TOKEN_CFG", torch.bfloat16)
    form = formats()["modelopt-fp8"]
    for module, weight in weights(model(torch.bfloat16)).items():
        theirs, ours = parts(tensors, module), form.store(Weight(quantize(weight, FP8), "BF16"))
        assert ours.keys() == theirs.keys()
        assert all(same(ours[suffix], theirs[suffix]) for suffix in theirs)
    assert form.read(config["quantization_config"], {"hf_quant_config.json": sidecar}) is not None


def test_the_format_is_modelopt_s_static_fp8_export(tmp_path: Path) -> None:
    """Given its input_scale. It gives fused weights no common scale, other than AWQ's."""
    tensors, config, sidecar = exported(tmp_path, "FP8_DEFAULT_CFG", torch.bfloat16)
    form = formats()["modelopt-fp8"]
    other = []
    for module, weight in weights(model(torch.bfloat16)).items():
        theirs = parts(tensors, module)
        ours = form.store(Weight(quantize(weight, FP8_TENSOR), "BF16", theirs["input_scale"]))
        assert ours.keys() == theirs.keys()
        assert all(same(ours[suffix], theirs[suffix]) for suffix in theirs)
        other.append(not same(quantize(weight.float(), FP8_TENSOR).qvalues, theirs["weight"]))
    assert form.read(config["quantization_config"], {"hf_quant_config.json": sidecar}) is not None
    # Divided in float32, as the formula has it and torch does not.
    assert any(other)


def test_the_format_is_modelopt_s_w4a8_awq_export(tmp_path: Path) -> None:
    """Given its pre_quant_scale and input_scale, of the weights whose smoothing it does not average with others'."""
    tensors, config, sidecar = exported(tmp_path, "W4A8_AWQ_BETA_CFG", torch.float32)
    form = formats()["modelopt-awq"]
    floats = weights(model(torch.float32))
    for module in (f"{PREFIX}self_attn.o_proj", f"{PREFIX}mlp.down_proj"):
        theirs = parts(tensors, module)
        smoothed = floats[module] * (1 / theirs["pre_quant_scale"])
        ours = form.store(Weight(quantize(smoothed, GROUP), "F32", theirs["input_scale"], theirs["pre_quant_scale"]))
        assert ours.keys() == theirs.keys()
        assert all(same(ours[suffix], theirs[suffix]) for suffix in theirs)
        other = form.store(Weight(quantize(floats[module], GROUP), "F32", theirs["input_scale"]))
        assert not same(other["weight"], theirs["weight"])
    assert form.read(config["quantization_config"], {"hf_quant_config.json": sidecar}) is not None
