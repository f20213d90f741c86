"""Intervals as strips: where on a common axis a ratio, its interval and the gate lie.

The page draws them as lines at percentages of the width, so that they fit a phone and a screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from draftconv.report.formatting import signed
from draftconv.report.statistics import Estimate
from draftconv.report.verdict import ParityVerdict, category_floor

STEPS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Distances between ticks: shares of the reference's accept length."""
MOST_TICKS = 7
LEAST = 0.005
"""Half of the narrowest axis: equal counts have no interval to fill one."""
WIDEST = 0.2
"""An interval wider than that tells next to nothing: an axis that held all of it would hide the others."""
EDGE = 4
"""Percent of the width at either end where no tick stands: half of what it says would lie outside."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on the axis in percent of its width, and what stands there.

    Attributes:
        minor: one that a narrow axis has no room for.
    """

    at: float
    text: str
    minor: bool


@dataclass(frozen=True, slots=True)
class Strip:
    """One row: the interval from `low` to `high` and the figure at `value`, in percent of the width.

    Attributes:
        below, above: whether the interval goes on beyond that end of the axis.
    """

    low: float
    value: float
    high: float
    below: bool
    above: bool

    @property
    def clipped(self) -> bool:
        return self.below or self.above


@dataclass(frozen=True, slots=True)
class Axis:
    """A common axis of ratios; `limit` is where too great a loss begins, if there is such a place."""

    left: float
    right: float
    limit: float | None

    @classmethod
    def of(cls, estimates: Iterable[Estimate], limit: float | None) -> Axis:
        """An axis that holds every figure with its interval, no change, and the limit.

        Of an interval wider than `WIDEST` it holds half of that on either side of its figure.
        """
        marks = [1 - LEAST, 1 + LEAST, *(bound for estimate in estimates for bound in _drawn(estimate))]
        marks += [] if limit is None else [1 - 1.3 * (1 - limit)]
        room = 0.06 * (max(marks) - min(marks))
        return cls(min(marks) - room, max(marks) + room, limit)

    def at(self, ratio: float) -> float:
        """Percent of the width."""
        return round(100 * (ratio - self.left) / (self.right - self.left), 3)

    def strip(self, estimate: Estimate) -> Strip:
        low, high = self.at(estimate.interval.low), self.at(estimate.interval.high)
        return Strip(max(low, 0.0), self.at(estimate.ratio), min(high, 100.0), low < 0, high > 100)

    @property
    def zero(self) -> float:
        """Where nothing has changed."""
        return self.at(1)

    @property
    def limit_at(self) -> float | None:
        return None if self.limit is None else self.at(self.limit)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Round changes in percent, no change among them, never minor."""
        span = self.right - self.left
        step = next((step for step in STEPS if span / step <= MOST_TICKS), STEPS[-1])
        first, last = math.ceil((self.left - 1) / step), math.floor((self.right - 1) / step)
        digits = max(0, -math.floor(math.log10(100 * step)))
        ticks = (
            Tick(self.at(1 + n * step), signed(100 * n * step, digits), n % 2 == 1) for n in range(first, last + 1)
        )
        return tuple(tick for tick in ticks if EDGE <= tick.at <= 100 - EDGE)


def gate_axis(verdict: ParityVerdict) -> Axis:
    """The axis of the verdict: pooled interval and margin."""
    margin = verdict.gate.margin
    return Axis.of(filter(None, [verdict.estimate]), None if margin is None else 1 - margin)


def category_axis(verdict: ParityVerdict) -> Axis:
    """The common axis of the categories and of all together, with the floor that no category may lie below.

    The floor stands there only where a category comes near it.
    """
    margin = verdict.gate.margin
    categories = verdict.categories.values()
    floor = 0.0 if margin is None else category_floor(margin)
    near = min((estimate.interval.low for estimate in categories), default=1.0) < (1 + floor) / 2
    parts = (*categories, *filter(None, [verdict.estimate]))
    return Axis.of(parts, floor if near and margin is not None else None)


def _drawn(estimate: Estimate) -> tuple[float, float]:
    """As much of an interval as an axis must hold."""
    low, high = estimate.interval.low, estimate.interval.high
    if high - low <= WIDEST:
        return low, high
    return max(low, estimate.ratio - WIDEST / 2), min(high, estimate.ratio + WIDEST / 2)
