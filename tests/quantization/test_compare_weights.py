"""Whether quantized weights are what they were made from: every value the nearest under its scale, none further."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from draftconv.quantization.compare_weights import WeightComparison, compare
from draftconv.quantization.format_detection import FormatMatch
from draftconv.quantization.formats import find_format
from draftconv.quantization.formats.base import Declared, Weight
from draftconv.quantization.quantized_weights import QuantizedWeights
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.rounding import RoundedWeight, dequantize, quantize
from tests.quantization.refs import ref_of, refs_of

MODULE = "layers.0.mlp.gate_proj"
FORMS = {"w4a16": "compressed-pack", "w4a16-g128": "compressed-pack", "fp8": "compressed-float"}
SOURCE = torch.randn(16, 256, generator=torch.Generator().manual_seed(3)).bfloat16()


def stored(recipe: str, quantized: RoundedWeight) -> QuantizedWeights:
    """A weight as a format holds it."""
    scheme = find_recipe(recipe).scheme
    weights = scheme.weights
    form, _ = find_format(FORMS[recipe])
    told = Declared(weights.dtype, weights.granularity, weights.group, scheme.inputs)
    outputs, inputs = quantized.qvalues.shape
    tensors = form.store(Weight(quantized, "BF16"))
    match = FormatMatch(form, told)
    return QuantizedWeights({MODULE: match}, {MODULE: refs_of(MODULE, tensors)}, {MODULE: (outputs, inputs)}, "BF16")


def rounded(recipe: str) -> RoundedWeight:
    return quantize(SOURCE, find_recipe(recipe).scheme.weights)


def judged(recipe: str, quantized: RoundedWeight, source: Tensor = SOURCE) -> WeightComparison:
    return compare(MODULE, stored(recipe, quantized), ref_of(f"{MODULE}.weight", source))


@pytest.mark.parametrize("recipe", FORMS)
def test_what_was_rounded_is_taken(recipe: str) -> None:
    found = judged(recipe, rounded(recipe))
    assert found.fault is None
    assert not found.same
    assert "every value the nearest under its scale" in found.how


@pytest.mark.parametrize("recipe", ["w4a16", "w4a16-g128"])
def test_one_code_beside_the_nearest_is_enough(recipe: str) -> None:
    quantized = rounded(recipe)
    qvalues = quantized.qvalues.clone()
    qvalues[7, 9] += 1 if qvalues[7, 9] < 0 else -1
    fault = judged(recipe, replace(quantized, qvalues=qvalues)).fault
    assert fault is not None
    assert fault.startswith("one value not the nearest of INT4: at [7, 9]")


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("recipe", FORMS)
def test_scales_that_were_changed_afterwards(recipe: str, factor: float) -> None:
    quantized = rounded(recipe)
    assert judged(recipe, replace(quantized, scale=quantized.scale * factor)).fault is not None


def test_a_scale_is_no_larger_than_its_weights_need() -> None:
    """Codes that are nearest under scales four times as large: nothing is wrong with them but what they lost."""
    quantized = rounded("w4a16")
    idle = replace(quantized, scale=quantized.scale * 4)
    units = SOURCE.float() / idle.scale.float()
    found = judged("w4a16", replace(idle, qvalues=units.round().clamp(-8, 7).to(torch.int8)))
    assert found.fault == "a scale of row 0 is more than twice what its largest weight needs"


@pytest.mark.parametrize("recipe", FORMS)
def test_floats_again_are_what_the_codes_stand_for(recipe: str) -> None:
    quantized = rounded(recipe)
    floats = dequantize(quantized, torch.bfloat16)
    theirs = stored(recipe, quantized)
    assert compare(MODULE, ref_of("x", floats), theirs).fault is None
    floats[5, 1] = -floats[5, 1] if floats[5, 1] else 1
    found = compare(MODULE, ref_of("x", floats), theirs)
    assert found.fault is not None
    assert found.fault.endswith("first in row 5")
