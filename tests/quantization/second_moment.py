"""Weights and inputs for GPTQ in tests: correlated, of unlike importance, with a few large weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.quantization.gptq import importance_order, round_rows, spread
from draftconv.quantization.quantized_values import encode
from draftconv.quantization.rounding import RoundedWeight, quantize
from draftconv.quantization.scheme import WeightScheme
from draftconv.quantization.threads import workers

CHANNEL = WeightScheme("int4", "channel", "mse", "F32")
GROUP = WeightScheme("int4", "group", "mse", "F32", 32)
INT8 = WeightScheme("int8", "channel", "mse", "F32")
SCHEMES = (CHANNEL, GROUP, INT8)


@dataclass(frozen=True, slots=True)
class Case:
    """A weight [O, I] in float32, and the second moment of its inputs in float64, where ties are as good as none."""

    weight_OI: Tensor
    inputs_NI: Tensor
    moment_II: Tensor


def case(seed: int, outputs: int = 48, inputs: int = 96, rows: int = 300, *, descending: bool = False) -> Case:
    """One of many.

    Args:
        descending: inputs come in the order in which GPTQ rounds them.
    """
    random = torch.Generator().manual_seed(seed)
    weight_OI = torch.randn(outputs, inputs, generator=random)
    weight_OI *= 1 + 4 * (torch.rand(outputs, inputs, generator=random) > 0.98)
    mixing_II = torch.randn(inputs, inputs, generator=random, dtype=torch.float64)
    spread_I = torch.logspace(-1, 1, inputs, dtype=torch.float64)[torch.randperm(inputs, generator=random)]
    inputs_NI = torch.randn(rows, inputs, generator=random, dtype=torch.float64) @ (mixing_II * spread_I)
    if descending:
        inputs_NI = inputs_NI[:, inputs_NI.square().sum(0).argsort(descending=True)]
    return Case(weight_OI, inputs_NI, inputs_NI.T @ inputs_NI)


def gptq(found: Case, scheme: WeightScheme, damping: float = 0.01) -> RoundedWeight:
    """Draftconv's rounding by one damping, in the dtype of the second moment."""
    rounded = quantize(found.weight_OI, scheme)
    order_I = importance_order(found.moment_II.diagonal())
    with workers(torch.device("cpu")) as each:
        by = spread(found.moment_II[order_I][:, order_I], order_I, damping, each)
    if by is None:
        raise ValueError("not positive definite")
    values_OI = round_rows(found.weight_OI.to(found.moment_II), rounded.scale, scheme, by)
    return RoundedWeight(scheme.dtype, encode(values_OI, scheme.dtype), rounded.scale, rounded.unit)
