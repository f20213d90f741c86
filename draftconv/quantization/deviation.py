"""How far a quantized weight is from the weight it was made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, linalg


@dataclass(frozen=True, slots=True)
class Deviation:
    """Errors of one weight.

    Attributes:
        relative: Frobenius norm of the error over that of the weight.
        worst: the same of the worst row, which is row `row`.
        typical: the same of the median row.
        largest: largest magnitude of any element's error.
        norm: Frobenius norm of the weight that was quantized.
    """

    relative: float
    worst: float
    row: int
    typical: float
    largest: float
    norm: float


@dataclass(frozen=True, slots=True)
class Total:
    """Errors of several weights as if they were one.

    Attributes:
        relative: Frobenius norm of all errors over that of all weights.
        worst: the largest relative error of any row, which is in weight `name`.
        largest: largest magnitude of any element's error.
    """

    relative: float
    worst: float
    name: str
    largest: float


def total(deviations: Mapping[str, Deviation]) -> Total:
    """Of weights by name, at least one."""
    every = deviations.values()
    weight = math.hypot(*(deviation.norm for deviation in every))
    error = math.hypot(*(deviation.relative * deviation.norm for deviation in every))
    name = max(deviations, key=lambda name: deviations[name].worst)
    return Total(
        relative=error / weight if weight else 0.0,
        worst=deviations[name].worst,
        name=name,
        largest=max(deviation.largest for deviation in every),
    )


class Sum:
    """A deviation while its rows come by."""

    def __init__(self) -> None:
        self.error = self.weight = self.largest = 0.0
        self.rows: list[float] = []

    def add(self, weight_BI: Tensor, quantized_BI: Tensor) -> None:
        """Take in some rows of both, float32. Overwrites the second: fresh memory costs more than this arithmetic."""
        error_BI = quantized_BI.sub_(weight_BI)
        low, high = error_BI.aminmax()
        error_B, weight_B = error_BI.square_().sum(-1), linalg.vector_norm(weight_BI, dim=-1).square()
        self.error += float(error_B.double().sum())
        self.weight += float(weight_B.double().sum())
        self.largest = max(self.largest, -float(low), float(high))
        self.rows += (error_B / weight_B.clamp_min(1e-30)).sqrt().tolist()

    def join(self, later: Sum) -> None:
        """Take in the rows that come after these."""
        self.error += later.error
        self.weight += later.weight
        self.largest = max(self.largest, later.largest)
        self.rows += later.rows

    def deviation(self) -> Deviation:
        """Of all rows seen so far."""
        worst = max(range(len(self.rows)), key=self.rows.__getitem__)
        ordered = sorted(self.rows)
        return Deviation(
            relative=math.sqrt(self.error / self.weight) if self.weight else 0.0,
            worst=self.rows[worst],
            row=worst,
            typical=ordered[len(ordered) // 2],
            largest=self.largest,
            norm=math.sqrt(self.weight),
        )
