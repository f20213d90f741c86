"""compressed-tensors' own words against draftconv's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Weight
from draftconv.quantization.pack_int32 import pack
from draftconv.quantization.rounding import dequantize, quantize
from draftconv.quantization.scheme import WeightScheme
from tests.quantization.backends.real import hard, needs, same

pytestmark = needs("compressed_tensors")

CHANNEL = WeightScheme("int4", "channel", "max/7.5", "weight")
GROUP = WeightScheme("int4", "group", "max/7.5", "weight", 32)
INT8 = WeightScheme("int8", "channel", "max/127", "weight")

every_scheme = pytest.mark.parametrize("scheme", [CHANNEL, GROUP, INT8], ids=str)


def compressed(weight_OI: Tensor, scale_OG: Tensor, scheme: WeightScheme, layout: str) -> dict[str, Tensor]:
    """What the library writes for a weight under these scales."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    bits = 4 if scheme.dtype == "int4" else 8
    args: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": scheme.granularity}
    told = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args, group_size=scheme.group))
    library = BaseCompressor.get_value_from_registry(layout)
    found: dict[str, Tensor] = library.compress({"weight": weight_OI, "weight_scale": scale_OG}, told)
    return found


@every_scheme
@pytest.mark.parametrize(
    ("layout", "form"), [("pack-quantized", "compressed-pack"), ("int-quantized", "compressed-int")]
)
def test_the_format_is_the_library_s(scheme: WeightScheme, layout: str, form: str) -> None:
    """In float32 the library's own quotient gives codes back exactly."""
    quantized = quantize(hard(torch.float32, scheme), scheme)
    theirs = compressed(dequantize(quantized), quantized.scale, scheme, layout)
    ours = formats()[form].store(Weight(quantized, "F32"))
    assert ours.keys() == theirs.keys()
    assert all(same(ours[suffix], theirs[suffix]) for suffix in theirs)


@pytest.mark.parametrize("scheme", [CHANNEL, GROUP], ids=str)
def test_the_packer_is_the_library_s(scheme: WeightScheme) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    quantized = quantize(hard(torch.bfloat16, scheme), scheme)
    ours = formats()["compressed-pack"].store(Weight(quantized, "BF16"))["weight_packed"]
    assert same(ours, pack_to_int32(quantized.qvalues, 4))
    assert same(unpack_from_int32(ours, 4, quantized.qvalues.shape), quantized.qvalues)
    assert not same(pack(quantized.qvalues, "order"), ours)  # two's complement, as Quark has it
    assert not same(pack(quantized.qvalues, "reorder"), ours)


def test_the_library_s_own_rounding_is_another() -> None:
    """It divides in the weight's dtype: why a recipe says whose rule it follows."""
    weight = hard(torch.bfloat16, CHANNEL)
    quantized = quantize(weight, CHANNEL)
    theirs = compressed(weight, quantized.scale, CHANNEL, "int-quantized")["weight"]
    apart = (theirs - quantized.qvalues).abs()
    assert 0 < apart.count_nonzero() < weight.numel() / 20
    assert apart.max() == 1
