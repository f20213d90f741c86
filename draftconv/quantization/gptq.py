"""GPTQ: weights rounded one input after the other, each error made up for by the inputs that are still to come.

Source: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022 (arXiv 2210.17323), with the order of inputs by their second moment ("activation order") of its
authors' code. Scales are found before and stay, so the values lie under the very scales, in the very formats, of
rounding to nearest: no engine sees a difference.

How much the second moment is damped decides how far a weight may move; too few rows, and moving it does harm. So
every damping of `DAMPINGS` is tried, rounding to nearest beside them, and the one is kept whose outputs err least on
rows that the second moment never saw.

Shapes: O output rows, B of them at a time, I inputs, G scales of a row, N rows of held-out inputs. A *position* is an
input's place in `order_I`; the last one is rounded first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftconv.quantization.inverse_factor import damp, invert_factor
from draftconv.quantization.quantized_values import STORED, encode, nearest
from draftconv.quantization.rounding import RoundedWeight, dequantize, quantize
from draftconv.quantization.scales import step
from draftconv.quantization.scheme import WeightScheme
from draftconv.quantization.threads import Workers

DAMPINGS = (0.01, 0.1, 0.3, 1.0)
"""Shares of the mean second moment of an input that are tried. 0.01 is the authors' choice, and llm-compressor's."""

COLUMNS = 128
"""Inputs whose errors reach the inputs beyond them together, as in the authors' code."""

HEIGHT = 512
"""Output rows of a block. A block is one thread's; its bits do not depend on the others."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How errors spread over the inputs that are still to be rounded.

    Attributes:
        factor_II: lower triangular X with Xᵀ X = (H + damping)⁻¹, of inputs in the order of `order_I`.
        order_I: the inputs, the least important first; int64.
    """

    factor_II: Tensor
    order_I: Tensor


@dataclass(frozen=True, slots=True)
class OneRounding:
    """One way to round a weight.

    Attributes:
        damping: None is rounding to nearest.
        qvalues_OI: as in `RoundedWeight`.
        error: Σ (x (ŵ - w))² over held-out rows and all outputs.
    """

    damping: float | None
    qvalues_OI: Tensor
    error: float


@dataclass(frozen=True, slots=True)
class ChosenRounding:
    """What was chosen for a weight.

    Attributes:
        nearest_error: of rounding to nearest, in the unit of `rounding.error`. `signal`: Σ (x w)² over the same rows.
    """

    rounding: OneRounding
    nearest_error: float
    signal: float


def importance_order(second_I: Tensor) -> Tensor:
    """Inputs by their second moment, the smallest first; of equal ones the last comes first.

    Read from its end it is the descending, stable order in which llm-compressor rounds.
    """
    return torch.argsort(second_I, descending=True, stable=True).flip(0)


def spread(ordered_II: Tensor, order_I: Tensor, damping: float, each: Workers) -> Spread | None:
    """Factor a second moment, damped.

    Args:
        ordered_II: of inputs in the order of `order_I`; overwritten.

    Returns:
        None where it is not positive definite, damped so.
    """
    return Spread(ordered_II, order_I) if invert_factor(damp(ordered_II, damping), each) else None


def round_rows(weight_BI: Tensor, scale_BG: Tensor, scheme: WeightScheme, by: Spread) -> Tensor:
    """Round some output rows under scales that are given.

    Args:
        weight_BI: in the dtype of the factor. `scale_BG`: as it is stored.

    Returns:
        Values of the dtype in units of the scale, [B, I], in the dtype of the factor.
    """
    order_I, factor_II = by.order_I, by.factor_II
    inputs = len(order_I)
    diagonal = factor_II.diagonal().tolist()
    step_BG = step(scheme.dtype, scale_BG, torch.ones((), device=scale_BG.device)).to(weight_BI)
    step_IB = step_BG[:, order_I // (inputs // step_BG.shape[1])].T.contiguous()
    unit_IB = step_IB.reciprocal()
    left_IB = weight_BI[:, order_I].T.contiguous()  # what is left to be rounded; then what it was rounded to
    error_CB = left_IB.new_empty(COLUMNS, left_IB.shape[1])
    for stop in range(inputs, 0, -COLUMNS):
        start = max(0, stop - COLUMNS)
        for position in range(stop - 1, start - 1, -1):
            value_B = nearest(left_IB[position] * unit_IB[position], scheme.dtype)
            error_B = error_CB[position - start]
            torch.addcmul(left_IB[position], value_B, step_IB[position], value=-1, out=error_B)
            error_B /= diagonal[position]
            left_IB[position] = value_B
            if position > start:
                left_IB[start:position].addr_(factor_II[position, start:position], error_B, alpha=-1)
        if start:
            left_IB[:start].addmm_(factor_II[start:stop, :start].T, error_CB[: stop - start], alpha=-1)
    value_BI = torch.empty_like(weight_BI)
    value_BI[:, order_I] = left_IB.T
    return value_BI


def choose(
    weights: Mapping[str, Tensor],
    scheme: WeightScheme,
    second_I: Tensor,
    ordered: Callable[[Tensor], Tensor],
    held_NI: Tensor,
    each: Workers,
    *,
    done: Callable[[int], None] = lambda _: None,
) -> dict[str, ChosenRounding]:
    """Round weights that read the same inputs, each in the way that errs least on held-out rows.

    Args:
        weights: name → [O, I], floating.
        second_I: the diagonal of the second moment.
        ordered: order of inputs → the second moment in that order, a tensor of its own: factored in its dtype.
        held_NI: rows of inputs that the second moment has not seen, in its dtype.
        each: who works on blocks of rows.
        done: told the elements of a weight that were rounded, once for each way to round it.

    Raises:
        BadCheckpoint: a weight holds NaN or infinities.
        UsageError: the inputs are no multiple of the group.
    """
    order_I = importance_order(second_I)
    chosen, scales = dict[str, ChosenRounding](), dict[str, Tensor]()
    for name, weight_OI in weights.items():
        rounded = _nearest(name, weight_OI, scheme, each)
        scales[name] = rounded.scale
        error, signal = _held_error(weight_OI, rounded.qvalues, rounded.scale, scheme, held_NI, each)
        chosen[name] = ChosenRounding(OneRounding(None, rounded.qvalues, error), error, signal)
        done(weight_OI.numel())
    for damping in DAMPINGS:
        by = spread(ordered(order_I), order_I, damping, each)
        for name, weight_OI in weights.items():
            if by is not None:
                qvalues_OI = _spread_errors(weight_OI, scales[name], scheme, by, each)
                error, _ = _held_error(weight_OI, qvalues_OI, scales[name], scheme, held_NI, each)
                if error < chosen[name].rounding.error:
                    chosen[name] = replace(chosen[name], rounding=OneRounding(damping, qvalues_OI, error))
            done(weight_OI.numel())
    return chosen


def _blocks(weight_OI: Tensor) -> Iterator[slice]:
    return (slice(first, first + HEIGHT) for first in range(0, len(weight_OI), HEIGHT))


def _nearest(name: str, weight_OI: Tensor, scheme: WeightScheme, each: Workers) -> RoundedWeight:
    parts = each(lambda at: quantize(weight_OI[at], scheme, name=name), _blocks(weight_OI))
    return replace(
        parts[0],
        qvalues=torch.cat([part.qvalues for part in parts]),
        scale=torch.cat([part.scale for part in parts]),
    )


def _spread_errors(weight_OI: Tensor, scale_OG: Tensor, scheme: WeightScheme, by: Spread, each: Workers) -> Tensor:
    qvalues_OI = torch.empty(weight_OI.shape, dtype=STORED[scheme.dtype], device=weight_OI.device)

    def fill(at: slice) -> None:
        values_BI = round_rows(weight_OI[at].to(by.factor_II), scale_OG[at], scheme, by)
        qvalues_OI[at] = encode(values_BI, scheme.dtype)

    each(fill, _blocks(weight_OI))
    return qvalues_OI


def _held_error(
    weight_OI: Tensor, qvalues_OI: Tensor, scale_OG: Tensor, scheme: WeightScheme, held_NI: Tensor, each: Workers
) -> tuple[float, float]:
    """Σ (x (ŵ - w))² and Σ (x w)² over held-out rows x."""
    unit = torch.ones((), device=weight_OI.device)

    def sums(at: slice) -> tuple[float, float]:
        wide_BI = weight_OI[at].float()
        off_BI = dequantize(RoundedWeight(scheme.dtype, qvalues_OI[at], scale_OG[at], unit)).sub_(wide_BI)
        return _energy(held_NI, off_BI), _energy(held_NI, wide_BI)

    parts = each(sums, _blocks(weight_OI))
    return sum(error for error, _ in parts), sum(signal for _, signal in parts)


def _energy(held_NI: Tensor, weight_BI: Tensor) -> float:
    return float((held_NI @ weight_BI.to(held_NI).T).double().square_().sum())
