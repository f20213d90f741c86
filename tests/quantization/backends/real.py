"""The real packages in tests: where they are, what they are given, and how bits are compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import WeightDtype, WeightScheme

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def needs(module: str) -> list[pytest.MarkDecorator]:
    """Marks of tests that run a package; its own warnings are its own affair.

    Without it they are skipped, but not by `scripts/test-oracles`, where it has to be.
    """
    there = find_spec(module) is not None or "DRAFTCONV_ORACLES" in os.environ
    return [
        pytest.mark.skipif(not there, reason=f"{module} is not installed here: scripts/test-oracles has it"),
        pytest.mark.filterwarnings("ignore"),
    ]


TIES: Mapping[WeightDtype, tuple[float, ...]] = {
    "int4": (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5),
    "int8": (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5),
    "fp8": (17, 19, 21, 23, 25, 27, 29, 31),
    "nvfp4": (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5),
    "mxfp4": (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5),
}
"""Half way between two codes, in units of the scale."""


def hard(dtype: torch.dtype, scheme: WeightScheme) -> Tensor:
    """A weight [64, 96] of ordinary rows and of every kind that rounding goes wrong on."""
    random = torch.Generator().manual_seed(7)
    weight = torch.randn(64, 96, generator=random)
    weight *= 1 + 4 * (torch.rand(64, 96, generator=random) > 0.98)
    weight[1] = 0
    weight[2] *= 1e-6  # F16: below its smallest normal number
    weight[3] *= 8e3
    weight[4] = -weight[4].abs()
    weight[5] = 0
    weight[5, 40] = -3.0
    weight[6, :32] = 0  # one group of zeros beside others
    weight[7] = weight[7].abs()
    ties = torch.tensor([sign * tie for tie in TIES[scheme.dtype] for sign in (1, -1)])
    peak = float(scheme.scale_rule.removeprefix("max/"))
    for row, scale in enumerate((1, 3, 5, 7, 11, 13, 17, 19, 23, 25, 29, 31, 41, 47, 55, 61), 8):
        weight[row] = ties.repeat(8)[:96] * scale
        weight[row, ::16] = -peak * scale  # so that this is the scale of the row, and of every group
    weight[24] = torch.linspace(-peak, peak, 96)
    return weight.to(dtype)


def bits(tensor: Tensor) -> Tensor:
    """A tensor as bytes: unlike values, they tell 0 from -0 and compare in every dtype."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def identical(a: RoundedWeight, b: RoundedWeight) -> bool:
    return (
        a.dtype == b.dtype
        and same(a.qvalues, b.qvalues)
        and same(a.scale, b.scale)
        and same(a.unit.reshape(()), b.unit.reshape(()))
    )
