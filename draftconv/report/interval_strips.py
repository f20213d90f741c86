"""Intervals as strips: where on a common axis a ratio, its interval and the gate lie.

The page draws them as lines at percentages of the width, so that they fit a phone and a screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from draftconv.report.formatting import signed
from draftconv.report.statistics import Estimate, Interval
from draftconv.report.verdict import ParityVerdict, category_floor

STEPS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Distances between ticks: shares of the reference's accept length."""
MOST_TICKS = 7
LEAST = 0.005
"""Half of the narrowest axis: equal counts have no interval to fill one."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on the axis in percent of its width, and what stands there."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One row: the interval from `low` to `high` and the figure at `value`, in percent of the width."""

    low: float
    value: float
    high: float

    @property
    def width(self) -> float:
        return round(self.high - self.low, 3)


@dataclass(frozen=True, slots=True)
class Axis:
    """A common axis of ratios; `limit` is where too great a loss begins, if there is such a place."""

    left: float
    right: float
    limit: float | None

    @classmethod
    def of(cls, intervals: Iterable[Interval], limit: float | None) -> Axis:
        """An axis that holds all intervals, no change, and the limit."""
        marks = [1 - LEAST, 1 + LEAST, *(bound for interval in intervals for bound in (interval.low, interval.high))]
        marks += [] if limit is None else [1 - 1.3 * (1 - limit)]
        room = 0.06 * (max(marks) - min(marks))
        return cls(min(marks) - room, max(marks) + room, limit)

    def at(self, ratio: float) -> float:
        """Percent of the width."""
        return round(100 * (ratio - self.left) / (self.right - self.left), 3)

    def strip(self, estimate: Estimate) -> Strip:
        return Strip(self.at(estimate.interval.low), self.at(estimate.ratio), self.at(estimate.interval.high))

    @property
    def zero(self) -> float:
        """Where nothing has changed."""
        return self.at(1)

    @property
    def limit_at(self) -> float | None:
        return None if self.limit is None else self.at(self.limit)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round changes in percent, no change among them."""
        span = self.right - self.left
        step = next((step for step in STEPS if span / step <= MOST_TICKS), STEPS[-1])
        first, last = math.ceil((self.left - 1) / step), math.floor((self.right - 1) / step)
        digits = max(0, -math.floor(math.log10(100 * step)))
        return tuple(Tick(self.at(1 + n * step), signed(100 * n * step, digits)) for n in range(first, last + 1))


def gate_axis(verdict: ParityVerdict) -> Axis:
    """The axis of the verdict: pooled interval and margin."""
    margin = verdict.gate.margin
    intervals = [verdict.estimate.interval] if verdict.estimate else []
    return Axis.of(intervals, None if margin is None else 1 - margin)


def category_axis(verdict: ParityVerdict) -> Axis:
    """The common axis of the categories, with the floor that none may lie below where one comes near it."""
    margin = verdict.gate.margin
    intervals = [estimate.interval for estimate in verdict.categories.values()]
    floor = 0.0 if margin is None else category_floor(margin)
    near = min((interval.low for interval in intervals), default=1.0) < (1 + floor) / 2
    return Axis.of(intervals, floor if near and margin is not None else None)
