"""Floats in place of quantized weights are exactly those that a recipe is simulated with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftconv.api.convert import ConvertOptions, convert
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.simulate import simulate, stored_dtypes
from draftconv.reference.load import load_drafter, to_torch
from tests import quantized
from tests.keywords import keywords
from tests.quantized import Written, floats_of

LLAMA, REDUCED, LLAMA31, MLA, MLA31 = (
    "llama-eagle3", "llama-eagle3-reduced", "llama-eagle3.1", "mla-eagle3", "mla-eagle3.1",
)  # fmt: skip


@pytest.mark.parametrize(("name", "recipe"), [(REDUCED, "quark-w4a8"), (MLA31, "w4a16-g128"), (REDUCED, "fp8")])
def test_the_dequantized_twin_is_what_is_simulated(name: str, recipe: str, written: Written, tmp_path: Path) -> None:
    target = quantized.target(name)
    options = ConvertOptions(target=str(quantized.DATA / "targets" / quantized.family(name)), dequantize=True)
    convert(written(name, recipe), tmp_path / "out", **keywords(options))
    source, twin = quantized.read(quantized.source(name), name), quantized.read(tmp_path / "out", name)
    assert twin.facts.computed == source.facts.computed
    model = load_drafter(source, target, dtype=torch.bfloat16)
    wanted = simulate(model, find_recipe(recipe), stored=stored_dtypes(source)).state_dict()
    for tensor, found in load_drafter(twin, target, dtype=torch.bfloat16).state_dict().items():
        assert torch.equal(found, wanted[tensor]), tensor


def test_a_wider_twin_rounds_nothing(written: Written, tmp_path: Path) -> None:
    source = written(REDUCED, "quark-w4a8")
    convert(source, tmp_path / "out", dequantize=True, dtype="float32")
    twin = quantized.read(tmp_path / "out", REDUCED)
    for module, wanted in floats_of(source, REDUCED).items():
        assert twin.tensors[f"{module}{WEIGHT}"].dtype == "F32"
        assert torch.equal(to_torch(twin.tensors[f"{module}{WEIGHT}"]), wanted)
