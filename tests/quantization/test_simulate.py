"""A drafter under a recipe: what changes, what is shared, and that the change is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.facts import Facts, Gqa
from draftconv.drafter.targets import find_target
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.quantization.exclusions import select
from draftconv.quantization.pack_int32 import pack, unpack
from draftconv.quantization.recipes import Recipe, find_recipe
from draftconv.quantization.rounding import dequantize, peak, quantize, round_trip
from draftconv.quantization.scheme import InputScheme, Scheme, WeightScheme
from draftconv.quantization.simulate import RoundedLinear, replaced, simulate, stored_dtypes
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import load_drafter
from tests.reference.test_fixtures import DATA, DRAFTERS
from tests.reference.variants import LLAMA, MLA, random_tensors, random_text

WIDE = replace(LLAMA, hidden=32, target_hidden=32, attention=Gqa(4, 2, 8), intermediate=64)
MODELS = pytest.mark.parametrize("facts", [WIDE, replace(WIDE, layers=2), MLA, replace(MLA, layers=2)])
QUARK, W4A8 = find_recipe("quark-w4a8"), find_recipe("w4a8")
DOWN = "layers.0.mlp.down_proj.weight"


def model_of(facts: Facts, dtype: torch.dtype = torch.float32) -> DrafterModel:
    return DrafterModel.from_tensors(facts, random_tensors(facts), dtype=dtype)


def logits(model: DrafterModel) -> Tensor:
    dtype = model.fc.weight.dtype
    states, tokens = random_text(model.facts, 5)
    z = model.step(model.fuse(states[None].to(dtype)), tokens[None, 1:6], model.cache())
    return model.logits(z)


def bits(model: DrafterModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@MODELS
@pytest.mark.parametrize("recipe", [QUARK, W4A8, find_recipe("fp8")], ids=lambda recipe: recipe.name)
def test_only_what_the_recipe_names_changes(facts: Facts, recipe: Recipe) -> None:
    model = model_of(facts)
    before, was = bits(model), logits(model)
    simulated = simulate(model, recipe)
    quantized = select(recipe, facts).quantized
    assert list(simulated.state_dict()) == list(before)
    for name, tensor in simulated.state_dict().items():
        assert torch.equal(tensor, before[name]) == (name not in quantized)
        assert (tensor.data_ptr() == model.state_dict()[name].data_ptr()) == (name not in quantized)
        if name in quantized:
            assert torch.equal(tensor, dequantize(quantize(before[name], recipe.scheme.weights)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(logits(model), was)
    assert 1e-3 < (logits(simulated) - was).norm() / was.norm() < 1
    assert simulated.facts is model.facts
    assert not simulated.training


def test_activations_are_rounded_before_quantized_weights_only() -> None:
    model = model_of(WIDE)
    plain, rounded = simulate(model, find_recipe("w4a16")), simulate(model, W4A8)
    assert all(torch.equal(plain.state_dict()[name], tensor) for name, tensor in rounded.state_dict().items())
    assert not torch.equal(logits(plain), logits(rounded))
    assert {f"{name}.weight" for name, module in rounded.named_modules() if isinstance(module, RoundedLinear)} == set(
        select(W4A8, WIDE).quantized
    )
    assert not any(isinstance(module, RoundedLinear) for module in plain.modules())
    x = torch.randn(2, 3, 64)
    layer, inputs = rounded.get_submodule("layers.0.mlp.down_proj"), InputScheme("int8", "token", True)
    wanted = round_trip(x, inputs) @ plain.get_parameter(DOWN).T
    assert torch.allclose(layer(x), wanted, atol=1e-6)
    assert not torch.allclose(layer(x), x @ plain.get_parameter(DOWN).T, atol=1e-6)


def test_a_bias_survives() -> None:
    model = model_of(replace(WIDE, mlp_bias=True))
    layer = simulate(model, W4A8).get_submodule("layers.0.mlp.down_proj")
    bias = model.get_parameter("layers.0.mlp.down_proj.bias")
    assert bias.abs().min() > 0
    assert torch.equal(layer(torch.zeros(1, 64))[0], bias)


def test_one_tensor_alone() -> None:
    model = model_of(WIDE)
    whole, alone = simulate(model, W4A8), simulate(model, W4A8, only=[DOWN])
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor, (whole if name == DOWN else model).state_dict()[name])
    assert [f"{n}.weight" for n, module in alone.named_modules() if isinstance(module, RoundedLinear)] == [DOWN]
    assert torch.equal(logits(simulate(model, W4A8, only=[])), logits(model))
    with pytest.raises(UsageError, match=r"fc\.weight is kept"):
        simulate(model, W4A8, only=["fc.weight"])


@pytest.mark.parametrize("name", ["fp8-tensor", "w4a8-awq", "nvfp4", "mxfp4"])
def test_static_activations_are_refused(name: str) -> None:
    with pytest.raises(Refused, match=f"recipe {name} cannot be simulated") as caught:
        simulate(model_of(WIDE), find_recipe(name))
    assert "calibration" in caught.value.why


@pytest.mark.parametrize(
    "weights", [WeightScheme("fp8", "tensor", "max/448", "F32"), WeightScheme("nvfp4", "group", "max/6", "F8_E4M3", 16)]
)
def test_a_scale_for_the_whole_tensor_is_shared_by_what_engines_join(weights: WeightScheme) -> None:
    model = model_of(WIDE)
    recipe = replace(QUARK, scheme=Scheme(weights))
    parts = {name: model.get_parameter(f"layers.0.self_attn.{name}_proj.weight") for name in "qkv"}
    largest = torch.stack([peak(part) for part in parts.values()]).amax()
    simulated = simulate(model, recipe)
    alone = simulate(model, recipe, only=["layers.0.self_attn.k_proj.weight"])
    for name, part in parts.items():
        wanted = dequantize(quantize(part, weights, whole=largest))
        assert torch.equal(simulated.get_parameter(f"layers.0.self_attn.{name}_proj.weight"), wanted)
        if name == "k":
            assert torch.equal(alone.get_parameter("layers.0.self_attn.k_proj.weight"), wanted)
    assert any(
        not torch.equal(dequantize(quantize(p, weights)), dequantize(quantize(p, weights, whole=largest)))
        for p in parts.values()
    )


def test_scales_follow_the_dtype_in_the_file() -> None:
    weights = {name: t.bfloat16() if t.is_floating_point() else t for name, t in random_tensors(WIDE).items()}
    wide = DrafterModel.from_tensors(WIDE, weights)
    narrow = DrafterModel.from_tensors(WIDE, weights, dtype=torch.bfloat16)
    files = dict.fromkeys(weights, torch.bfloat16)
    found = simulate(wide, QUARK, stored=files).get_parameter(DOWN)
    assert found.dtype == torch.float32
    assert torch.equal(found, dequantize(quantize(weights[DOWN], QUARK.scheme.weights)))
    assert torch.equal(found.bfloat16(), simulate(narrow, QUARK).get_parameter(DOWN))
    assert not torch.equal(found, simulate(wide, QUARK).get_parameter(DOWN))


def test_moving_the_new_drafter_leaves_the_given_one() -> None:
    model = model_of(WIDE)
    simulate(model, W4A8).to(torch.bfloat16)
    assert all(tensor.dtype == torch.float32 for tensor in model.state_dict().values())


def test_a_borrowed_head_is_never_quantized() -> None:
    facts = replace(WIDE, own_head=False, own_embedding=False)
    tensors = random_tensors(facts)
    model = DrafterModel.from_tensors(facts, tensors)
    everything = Recipe("mine", "", QUARK.scheme, ("embed", "norms"))
    simulated = simulate(model, everything)
    assert torch.equal(simulated.lm_head.weight, model.lm_head.weight)
    assert not torch.equal(simulated.fc.weight, model.fc.weight)


def test_weights_that_are_not_finite_are_named() -> None:
    tensors = random_tensors(WIDE)
    tensors[DOWN][3, 3] = float("nan")
    with pytest.raises(BadCheckpoint, match=f"^{DOWN} holds NaN"):
        simulate(DrafterModel.from_tensors(WIDE, tensors), QUARK)


def test_damage_moves_the_logits() -> None:
    """What a wrong writer would make of the same integers is far from what the recipe makes."""
    model = model_of(WIDE)
    right, was = simulate(model, QUARK), logits(model)
    good = {name: quantize(model.get_parameter(name), QUARK.scheme.weights) for name in select(QUARK, WIDE).quantized}
    doubled = {name: dequantize(replace(q, scale=q.scale * 2)) for name, q in good.items()}
    permuted = {
        name: dequantize(replace(q, qvalues=unpack(pack(q.qvalues, "order"), "reorder"))) for name, q in good.items()
    }
    honest = (logits(right) - was).norm()
    for bad in (doubled, permuted):
        assert (logits(replaced(model, bad)) - was).norm() > 2 * honest
    assert torch.equal(logits(replaced(model, {name: dequantize(q) for name, q in good.items()})), logits(right))


# ── trained drafters ───────────────────────────────────────────────────────────────

ERRORS = {
    "llama-eagle3": {"quark-w4a8": 0.1267, "w4a16": 0.1103, "w4a16-g128": 0.1023, "fp8": 0.0261},
    "llama-eagle3-reduced": {"quark-w4a8": 0.1259, "w4a16": 0.1095, "w4a16-g128": 0.1017, "fp8": 0.0262},
    "llama-eagle3.1": {"quark-w4a8": 0.1234, "w4a16": 0.1072, "w4a16-g128": 0.1012, "fp8": 0.0262},
    "mla-eagle3": {"quark-w4a8": 0.1162, "w4a16": 0.1045, "w4a16-g128": 0.1025, "fp8": 0.0259},
    "mla-eagle3.1": {"quark-w4a8": 0.1157, "w4a16": 0.1038, "w4a16-g128": 0.1011, "fp8": 0.0261},
}
"""Relative error of all quantized weights together: |dequantized - w| / |w|."""


@DRAFTERS
def test_the_error_on_trained_weights(name: str) -> None:
    target = find_target(str(DATA / "targets" / name.partition("-")[0]), None)
    drafter = read_drafter(open_checkpoint(Path(DATA / "drafters" / name)), ReadOptions(target=target))
    model, files = load_drafter(drafter, target), stored_dtypes(drafter)
    assert set(files.values()) == {torch.bfloat16}
    for recipe, wanted in ERRORS[name].items():
        simulated = simulate(model, find_recipe(recipe), stored=files)
        names = select(find_recipe(recipe), model.facts).quantized
        was = torch.cat([model.get_parameter(name).flatten() for name in names])
        now = torch.cat([simulated.get_parameter(name).flatten() for name in names])
        assert float((now - was).norm() / was.norm()) == pytest.approx(wanted, abs=2e-4)
