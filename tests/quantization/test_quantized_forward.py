"""A quantized file in the reference forward computes what its recipe was said to compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.errors import Refused
from draftconv.quantization.quantized_forward import load_quantized
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.rounding import input_scale, round_to
from draftconv.quantization.scheme import InputScheme
from draftconv.quantization.simulate import RoundedLinear, simulate, stored_dtypes
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import load_drafter
from tests import quantized
from tests.reference.variants import random_text
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

DOWN = "layers.0.mlp.down_proj"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def load(path: Path, name: str, dtype: torch.dtype = torch.float32) -> DrafterModel:
    drafter, opened = quantized.read(path, name), quantized.target(name).open()
    names = {EMBEDDING: "model.embed_tokens.weight", HEAD: "lm_head.weight"}
    tables = {ours: opened.tensors[theirs] for ours, theirs in names.items() if ours not in drafter.tensors}
    return load_quantized(drafter, tables, dtype)


def plain(name: str, dtype: torch.dtype = torch.float32) -> DrafterModel:
    return load_drafter(quantized.read(quantized.source(name), name), quantized.target(name), dtype=dtype)


def logits(model: DrafterModel) -> Tensor:
    dtype = model.fc.weight.dtype
    states, tokens = random_text(model.facts, 5)
    return model.logits(model.step(model.fuse(states[None].to(dtype)), tokens[None, 1:6], model.cache()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("llama-eagle3", "quark-w4a8"),
        ("llama-eagle3-reduced", "w4a8"),
        ("llama-eagle3.1", "w4a16-g128"),
        ("mla-eagle3", "fp8"),
        ("mla-eagle3.1", "w4a8"),
    ],
)
def test_the_file_computes_what_the_recipe_promised(name: str, recipe: str, dtype: torch.dtype, tmp_path: Path) -> None:
    quantized.write(tmp_path / "out", name, recipe)
    found = load(tmp_path / "out", name, dtype)
    stored = stored_dtypes(quantized.read(quantized.source(name), name))
    wanted = simulate(plain(name, dtype), find_recipe(recipe), stored=stored)
    assert found.state_dict().keys() == wanted.state_dict().keys()
    for tensor, value in wanted.state_dict().items():
        assert torch.equal(found.state_dict()[tensor], value), tensor
    assert torch.equal(logits(found), logits(wanted))


def test_activations_under_a_fixed_scale_are_rounded_with_it(recorded: Recorded, tmp_path: Path) -> None:
    name = "llama-eagle3"
    quantized.write(tmp_path / "out", name, "fp8-tensor", trace=recorded("llama", count=2, length=8))
    linear = load(tmp_path / "out", name).get_submodule(DOWN)
    assert isinstance(linear, RoundedLinear)
    assert linear.scale is not None
    x = torch.randn(3, 384, generator=torch.Generator().manual_seed(0))
    rounded = round_to(x, linear.inputs, linear.scale)
    assert torch.equal(linear(x), torch.nn.functional.linear(rounded, linear.weight))
    assert not torch.equal(rounded, x)


def test_inputs_are_smoothed_before_they_are_rounded(recorded: Recorded, tmp_path: Path) -> None:
    """AWQ: x · f is rounded, and meets codes that stand for w / f."""
    name, out = "llama-eagle3", tmp_path / "out"
    quantized.write(out, name, "w4a8-awq", trace=recorded("llama", count=2, length=8))
    plain = load(out, name).get_submodule(DOWN)
    tensors = load_file(out / "model.safetensors")
    (key,) = (key for key in tensors if key.endswith("down_proj.pre_quant_scale"))
    factor = torch.linspace(0.5, 2, 384).to(tensors[key].dtype)
    save_file(tensors | {key: factor}, out / "model.safetensors", {"format": "pt"})
    linear = load(out, name).get_submodule(DOWN)
    assert isinstance(plain, RoundedLinear) and isinstance(linear, RoundedLinear)
    assert plain.factor is None
    assert linear.scale is not None
    assert torch.equal(linear.weight, plain.weight)
    x = torch.randn(3, 384, generator=torch.Generator().manual_seed(0))
    rounded = round_to(x * factor.float(), linear.inputs, linear.scale)
    assert torch.equal(linear(x), torch.nn.functional.linear(rounded, plain.weight))
    assert not torch.equal(linear(x), plain(x))


def test_what_is_not_simulated_is_refused_before_weights_are_read(recorded: Recorded, tmp_path: Path) -> None:
    quantized.write(tmp_path / "out", "llama-eagle3", "nvfp4", trace=recorded("llama", count=2, length=8))
    with pytest.raises(Refused, match="NVFP4 per block of 16, under a static scale per tensor are not simulated"):
        load(tmp_path / "out", "llama-eagle3")


# ── static scales ──────────────────────────────────────────────────────────────────

FP8, NVFP4 = InputScheme("fp8", "tensor", False), InputScheme("nvfp4", "tensor", False)


def test_stored_scales_by_hand() -> None:
    assert float(input_scale(torch.tensor(896.0), FP8)) == 2.0
    assert float(input_scale(torch.tensor(5376.0), NVFP4)) == 2.0
    assert input_scale(torch.tensor(3.0, dtype=torch.bfloat16), FP8).dtype == torch.float32


def test_a_fixed_scale_by_hand() -> None:
    """Under a scale of 2, FP8 keeps 17 as 2 * 8.5 → 2 * 8 (even) and clips 2000 to 2 * 448."""
    x = torch.tensor([[17.0, 18.0, 2000.0, -2000.0, 0.0]], dtype=torch.bfloat16)
    found = round_to(x, FP8, torch.tensor(2.0))
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [[16.0, 18.0, 896.0, -896.0, 0.0]]
