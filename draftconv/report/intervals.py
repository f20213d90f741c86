"""A figure with its 95 % interval: bootstrap and delta method together (`draftconv.report.resampling`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.report.resampling import influence, percentiles, reach

if TYPE_CHECKING:
    from draftconv.report.resampling import Floats


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval, two-sided."""

    low: float
    high: float

    def clipped(self, limits: Interval) -> Interval:
        """The part of it inside `limits`."""
        return Interval(max(self.low, limits.low), min(self.high, limits.high))


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure with its interval, which never leaves what is possible and is all of that for a single cluster."""

    value: float
    interval: Interval


def pooled(
    part_C: Floats, whole_C: Floats, parts_B: Floats, wholes_B: Floats, limits: Interval, *, plus: float = 0.0
) -> Measured:
    """`plus` + Σ part / Σ whole, of clusters [C] and of their sums over resamples [B]; no resample may lack a whole."""
    value = plus + float(part_C.sum() / whole_C.sum())
    return measured(value, influence(part_C, whole_C), plus + parts_B / wholes_B, limits)


def measured(value: float, psi_C: Floats, draws_B: Floats, limits: Interval) -> Measured:
    """A value with the wider of its two intervals on each side, from the influence of clusters and from resamples."""
    low, high = map(float, percentiles(draws_B))
    half = float(reach(psi_C))
    return Measured(value, Interval(min(low, value - half), max(high, value + half)).clipped(limits))
