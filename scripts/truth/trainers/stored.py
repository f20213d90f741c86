"""What quantized bytes stand for, in float64: ModelOpt's formulas, written out apart from draftconv's formats.

Every product of a stored value and its scales is exact in float64.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NVFP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the codes 0 to 7; bit 3 is the sign."""

NVFP4_GROUP = 16
PARTS = (".weight", ".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale")
"""What a quantized module stores besides its bias."""

SIGNIFICANT = {torch.float32: 24, torch.bfloat16: 8}
"""Bits of a significand, the leading one with them."""

PRODUCT = 2.0**-23
"""How far two products in float32, of a value with its scale and with another factor, may be from the exact one."""


def quantized_modules(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Modules that have a scale."""
    suffix = ".weight_scale"
    return frozenset(name.removesuffix(suffix) for name in tensors if name.endswith(suffix))


def stands_for(tensors: Mapping[str, Tensor], module: str) -> Tensor:
    """The weight of a module as its inputs meet it, float64 [out, in]; smoothing of the inputs is multiplied in."""
    weight, scale = tensors[f"{module}.weight"], tensors[f"{module}.weight_scale"]
    if weight.dtype == torch.float8_e4m3fn:
        return weight.double() * (scale.double()[:, None] if scale.ndim else scale.double())
    if scale.dtype == torch.float8_e4m3fn:
        codes = torch.stack((weight & 15, weight >> 4), dim=-1).flatten(1).long()
        values = torch.tensor((*NVFP4, *(-value for value in NVFP4)), dtype=torch.float64)[codes]
        return values * scale.double().repeat_interleave(NVFP4_GROUP, 1) * tensors[f"{module}.weight_scale_2"].double()
    rows = torch.stack((weight & 15, weight >> 4), dim=1).flatten(0, 1).long()
    values = (rows - 16 * (rows > 7)).double()  # two outputs in a byte, two's complement
    found = values * scale.double().repeat_interleave(values.shape[1] // scale.shape[1], 1)
    smoothing = tensors.get(f"{module}.pre_quant_scale")
    return found if smoothing is None else found * smoothing.double()


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 rounded to the nearest and of two to the even one, float64; through float32 it would be twice."""
    significand, exponent = torch.frexp(exact)
    bits = SIGNIFICANT[dtype]
    return torch.ldexp(torch.round(torch.ldexp(significand, torch.tensor(bits))), exponent - bits)


def is_rounded(found: Tensor, exact: Tensor) -> bool:
    """Whether every element is what a product in float32, rounded once to this dtype, can be."""
    if found.shape != exact.shape:
        return False
    ends = (rounded(exact * (1 - PRODUCT), found.dtype), rounded(exact * (1 + PRODUCT), found.dtype))
    between = (torch.minimum(*ends) <= found.double()) & (found.double() <= torch.maximum(*ends))
    return bool(between.all())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def wrong_float(stored: Mapping[str, Tensor], floats: Mapping[str, Tensor]) -> str:
    """The first tensor that is not what the export's bytes stand for, rounded once, or not its own bits.

    Args:
        stored: of the export. `floats`: of its conversion; both named alike.
    """
    modules = quantized_modules(stored)
    restored = {f"{module}.weight": module for module in modules}
    kept = {name for name in stored if not (name.rpartition(".")[0] in modules and name.endswith(PARTS))}
    if odd := (kept | restored.keys()) ^ floats.keys():
        return f"{min(odd)} is in one of them only"
    for name, found in sorted(floats.items()):
        if name in kept:
            if not same_bits(found, stored[name]):
                return f"{name} has other bits"
        elif not is_rounded(found, stands_for(stored, restored[name])):
            return f"{name} is not what its values and scales stand for"
    return ""
