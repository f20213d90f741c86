"""Quantized drafters as they are found on disk: which format, which modules, and what is wrong with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv import inspect
from draftconv.errors import BadCheckpoint
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.rounding import quantize
from draftconv.quantization.weight_detection import find_quantized
from draftconv.reference.load import to_torch
from tests import quantized

NAME = "llama-eagle3-reduced"
FORMATS = {
    "w4a16": "compressed-pack",
    "w4a16-g128": "compressed-pack",
    "w4a8": "compressed-pack",
    "fp8": "compressed-float",
    "quark-w4a8": "quark-int4",
    "w4a16-awq": "modelopt-awq",
}
"""Recipes that need no calibration and the format that is written of each where no engine is named."""

DOWN = "layers.0.mlp.down_proj"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


Spoil = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def spoilt(out: Path, recipe: str, spoil: Spoil) -> Path:
    """A quantized fixture, its config and tensors changed by hand."""
    quantized.write(out, NAME, recipe)
    config, tensors = json.loads((out / "config.json").read_text()), load_file(out / "model.safetensors")
    spoil(config, tensors)
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


@pytest.mark.parametrize("recipe", FORMATS)
def test_every_weight_is_found_and_is_the_source_quantized(recipe: str, tmp_path: Path) -> None:
    done = quantized.write(tmp_path / "out", NAME, recipe)
    found = find_quantized(quantized.read(tmp_path / "out", NAME))
    assert (found.only.format.id, found.dtype) == (FORMATS[recipe], "BF16")
    assert {f"{module}{WEIGHT}" for module in found.modules} == set(done.decided.selection.quantized)
    scheme, source = find_recipe(recipe).scheme, quantized.read(quantized.source(NAME), NAME)
    assert (found.only.declared.dtype, found.only.declared.inputs) == (scheme.weights.dtype, scheme.inputs)
    for module in found.modules:
        weight, float_weight = found.load(module), to_torch(source.tensors[f"{module}{WEIGHT}"])
        wanted = quantize(float_weight, scheme.weights)
        assert torch.equal(weight.quantized.qvalues.view(torch.uint8), wanted.qvalues.view(torch.uint8))
        assert torch.equal(weight.quantized.scale.float(), wanted.scale.float())
        assert found.shapes[module] == tuple(float_weight.shape)
        assert found.group(weight) == scheme.weights.group


def test_a_config_of_quantized_weights_beside_plain_ones_is_refused(tmp_path: Path) -> None:
    """A leftover of an export; `inspect` tells it as it tells any other lie of a config."""
    path = tmp_path / "out"
    shutil.copytree(quantized.source(NAME), path)
    (path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(BadCheckpoint, match=r"declared quantized \(modelopt FP8\), and none is"):
        find_quantized(quantized.read(path, NAME))
    (problem,) = (problem for problem in inspect(path).problems if problem.code == "weights-misdeclared")
    assert "none is" in problem.detail


def test_tensors_decide_what_is_quantized(tmp_path: Path) -> None:
    """The published W4A8 drafter's card keeps fc; its file may hold it packed."""

    def pack_fc(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del tensors["fc.weight"]
        tensors["fc.weight_packed"] = torch.zeros(256, 96, dtype=torch.int32)
        tensors["fc.weight_scale"] = torch.ones(256, 1, dtype=torch.bfloat16)

    found = find_quantized(quantized.read(spoilt(tmp_path / "out", "w4a16", pack_fc), NAME))
    assert set(found.modules["fc"]) == {"weight_packed", "weight_scale"}
    assert torch.equal(found.load("fc").quantized.qvalues, torch.full((256, 768), -8, dtype=torch.int8))


def test_a_config_of_another_format_is_overruled_by_the_tensors(tmp_path: Path) -> None:
    def other(config: dict[str, Any], _: dict[str, torch.Tensor]) -> None:
        config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}

    found = find_quantized(quantized.read(spoilt(tmp_path / "out", "w4a16", other), NAME))
    assert found.only.format.id == "compressed-pack"
    assert "config.json does not say how the weights are stored" in found.findings[0]


def test_a_config_that_lies_about_the_format_is_seen(tmp_path: Path) -> None:
    def lie(config: dict[str, Any], _: dict[str, torch.Tensor]) -> None:
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False,
                                         "sym": True}  # fmt: skip

    found = find_quantized(quantized.read(spoilt(tmp_path / "out", "w4a16-g128", lie), NAME))
    assert found.only.format.id == "compressed-pack"
    assert found.findings


def test_a_weight_of_another_shape_is_seen(tmp_path: Path) -> None:
    def halve(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if name.endswith("mlp.down_proj.weight_packed"))
        tensors[name] = tensors[name][:, ::2].contiguous()
        del tensors[name.replace("weight_packed", "weight_shape")]

    found = find_quantized(quantized.read(spoilt(tmp_path / "out", "w4a16", halve), NAME))
    with pytest.raises(BadCheckpoint, match=r"down_proj unpacks to \(256, 192\), the drafter needs \(256, 384\)"):
        found.load(DOWN)


def test_scales_of_no_weight_are_refused(tmp_path: Path) -> None:
    def stray(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        prefix = next(name for name in tensors if "q_proj" in name).partition("self_attn")[0]
        tensors[f"{prefix}self_attn.attn.k_scale"] = torch.ones(())
        tensors[f"{prefix}mlp.extra.weight_scale"] = torch.ones(4, 1)

    drafter = quantized.read(spoilt(tmp_path / "out", "w4a16", stray), NAME)
    with pytest.raises(BadCheckpoint, match="is no weight of a drafter that could be quantized"):
        find_quantized(drafter)
