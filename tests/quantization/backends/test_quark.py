"""amd-quark's own bytes against draftconv's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftconv.errors import BadCheckpoint
from draftconv.quantization import scales
from draftconv.quantization.backends import backend
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Declared, Weight
from draftconv.quantization.rounding import dequantize, quantize
from draftconv.quantization.scheme import SCALE_RULES, WeightScheme
from tests.quantization.backends.drafters import model, weights
from tests.quantization.backends.real import every_dtype, hard, identical, needs, same

pytestmark = needs("quark")

CHANNEL = WeightScheme("int4", "channel", "max/7.5", "weight")
GROUP = WeightScheme("int4", "group", "max/7.5", "weight", 32)
MXFP4 = WeightScheme("mxfp4", "group", "max/3.5", "E8M0", 32)

both = pytest.mark.parametrize("scheme", [CHANNEL, GROUP], ids=["channel", "group"])


@every_dtype
@both
def test_native_has_quark_s_bits(scheme: WeightScheme, dtype: torch.dtype) -> None:
    weight = hard(dtype, scheme)
    assert identical(quantize(weight, scheme), backend("quark", scheme)(weight, scheme))


def test_dividing_by_the_scale_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = hard(torch.float32, CHANNEL)
    theirs = backend("quark", CHANNEL)(weight, CHANNEL)
    monkeypatch.setitem(vars(scales)["SCALE_RULES"], "max/7.5", replace(SCALE_RULES["max/7.5"], reciprocal=False))
    ours = quantize(weight, CHANNEL)
    assert same(ours.scale, theirs.scale)
    assert not same(ours.qvalues, theirs.qvalues)


def test_no_floor_under_scales_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = hard(torch.float32, CHANNEL)
    theirs = backend("quark", CHANNEL)(weight, CHANNEL)
    monkeypatch.setitem(vars(scales)["SCALE_RULES"], "max/7.5", replace(SCALE_RULES["max/7.5"], floor=None))
    assert not same(quantize(weight, CHANNEL).scale, theirs.scale)


@pytest.mark.parametrize("shape", [(5, 12), (11, 32)], ids=str)
@both
def test_rows_and_inputs_need_not_fill_words(shape: tuple[int, int], scheme: WeightScheme) -> None:
    scheme = replace(scheme, group=4) if scheme.group else scheme
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert identical(quantize(weight, scheme), backend("quark", scheme)(weight, scheme))


def test_what_is_not_finite_is_refused_alike() -> None:
    weight = hard(torch.float32, CHANNEL)
    weight[9, 9] = torch.nan
    with pytest.raises(BadCheckpoint, match="q_proj holds NaN or infinite values"):
        backend("quark", CHANNEL)(weight, CHANNEL, name="q_proj")


def test_mxfp4_has_quark_s_values() -> None:
    weight = hard(torch.bfloat16, MXFP4)
    ours, theirs = quantize(weight, MXFP4), backend("quark", MXFP4)(weight, MXFP4)
    assert torch.equal(dequantize(ours), dequantize(theirs))
    blocks = torch.unflatten(weight, 1, (-1, 32)).abs().amax(-1) > 0
    assert torch.equal(ours.scale[blocks], theirs.scale[blocks])
    assert not torch.equal(ours.scale, theirs.scale)  # a block of zeros, where 2**-126 is as good as 1


def exported(directory: Path, scheme: WeightScheme, pack_method: str) -> tuple[dict[str, Tensor], Mapping[str, object]]:
    """Tensors and quantization_config that Quark writes for a whole model in memory, and the weights it had."""
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.quantization import Int4PerChannelSpec, Int4PerGroupSpec, QConfig, QLayerConfig
    from safetensors.torch import load_file

    if scheme.group is None:
        spec = Int4PerChannelSpec(ch_axis=0, is_dynamic=False)
    else:
        spec = Int4PerGroupSpec(ch_axis=-1, group_size=scheme.group, is_dynamic=False)
    layer = QLayerConfig(weight=spec.to_quantization_spec())
    config = QConfig(global_quant_config=layer, exclude=["lm_head", "*embed_tokens*"])
    frozen = ModelQuantizer.freeze(ModelQuantizer(config).quantize_model(model(torch.bfloat16)))
    export_safetensors(frozen, directory, pack_method=pack_method)
    config_json = json.loads((directory / "config.json").read_text())
    return load_file(directory / "model.safetensors"), config_json["quantization_config"]


@pytest.mark.parametrize("style", ["reorder", "order"])
@both
def test_the_format_is_quark_s_in_memory_export(scheme: WeightScheme, style: str, tmp_path: Path) -> None:
    tensors, config = exported(tmp_path, scheme, style)
    form = formats()["quark-int4"]
    other = "order" if style == "reorder" else "reorder"
    for name, weight in weights(model(torch.bfloat16)).items():
        theirs = {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}
        quantized = quantize(weight, scheme)
        ours = form.store(Weight(quantized, "BF16"), style)
        assert ours.keys() == theirs.keys()
        assert all(same(ours[suffix], theirs[suffix]) for suffix in ours)
        assert not same(form.store(Weight(quantized, "BF16"), other)["weight"], theirs["weight"])

    declared = form.read(config, {})
    assert declared == Declared(
        "int4", scheme.granularity, scheme.group, None, ("model.embed_tokens", "lm_head"), style
    )
    assert identical(form.load(theirs, declared, "BF16").quantized, quantized)
