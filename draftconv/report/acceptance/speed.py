"""Which K pays: tokens per second from accept lengths and the time of one step.

A step with K drafted tokens takes T(K) and yields AL(K) tokens, so a request gets AL(K) / T(K) tokens per second and
1 / T(0) without a drafter. Speculation pays where AL(K) > T(K) / T(0), the break-even accept length (Leviathan et al.
2023, section 3.3, with times in place of their cost coefficient). T(K) is measured, or T(0) and what K draft steps add
to it: then verifying K + 1 tokens is taken to cost what one token costs, which holds while reading weights bounds the
target (few requests at a time).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from draftconv.report.acceptance.measure import AcceptLength
from draftconv.report.intervals import Interval, Measured

Evidence = Literal["measured", "given", "estimate"]
EVIDENCE: dict[Evidence, str] = {
    "measured": "steps with drafted tokens measured",
    "given": "draft step given",
    "estimate": "draft step an estimate",
}
NEAR = 0.01
"""Share of the best speed that a smaller K may lack to be named beside the best."""
SMALLER = 0.5
"""Of the time that drafting takes: what a smaller drafter may bring."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long a step takes for one drafter under one load, in ms.

    Attributes:
        concurrency: requests at a time. `target`: T(0), a step without a drafter, one token for each request.
        evidence: of what drafting adds. `source`: the same in words: bytes and bandwidth of an estimate.
        measured: (K, T(K)), ascending, K >= 1; empty where the next two say what drafting adds.
        once, each: what a round and a draft step add: T(K) = target + once + K * each.
    """

    concurrency: int
    target: float
    evidence: Evidence
    source: str
    measured: tuple[tuple[int, float], ...] = ()
    once: float = 0.0
    each: float = 0.0

    @property
    def possible(self) -> bool:
        """Whether a step takes time, and with every drafted token no less."""
        known = [(0, self.target), *self.measured]
        rises = all(k0 < k1 and t0 <= t1 for (k0, t0), (k1, t1) in pairwise(known))
        return self.target > 0 and rises and min(self.once, self.each) >= 0 and self.concurrency >= 1

    def step(self, depth: int) -> float:
        """T(depth): between two measured ones and beyond them by the straight line through the nearest two.

        A single measured one has T(0) as its second; no step takes less than T(0), wherever a line leads.
        """
        if not self.measured:
            return self.target + self.once + depth * self.each
        known = self.measured if len(self.measured) > 1 else ((0, self.target), *self.measured)
        above = next((n for n, (k, _) in enumerate(known) if k >= depth), len(known) - 1)
        (k0, t0), (k1, t1) = known[max(0, above - 1)], known[max(1, above)]
        return max(self.target, t0 + (depth - k0) * (t1 - t0) / (k1 - k0))

    def shrunk(self, share: float) -> StepCost:
        """The same load for a drafter that takes this share of the time to draft."""
        added = tuple((k, self.target + share * (time - self.target)) for k, time in self.measured)
        return replace(self, measured=added, once=share * self.once, each=share * self.each)


@dataclass(frozen=True, slots=True)
class SpeedAtDepth:
    """One K under one load.

    Attributes:
        step: T(K) in ms. `rate`: tokens per second of one request; its interval is that of the accept length.
        gain: the same, divided by that without a drafter. `break_even`: the accept length below which K costs time.
    """

    depth: int
    step: float
    rate: Measured
    gain: Measured
    break_even: float


@dataclass(frozen=True, slots=True)
class SpeedUnderLoad:
    """One drafter under one load.

    Attributes:
        depths: K = 1, 2 …
        best: the K with the most tokens per second. `near`: smaller ones that come within 1 % of it.
        smaller: the same load for a drafter that needs half the time, if it kept its accept length: its best K.
        spare: share of its accept length at `best` that this smaller drafter may lose before it is slower there.
    """

    cost: StepCost
    depths: tuple[SpeedAtDepth, ...]
    best: int
    near: tuple[int, ...]
    smaller: SpeedAtDepth
    spare: float

    @property
    def pays(self) -> bool:
        """Whether its best K is faster than no drafter."""
        return self.at(self.best).gain.value > 1

    def at(self, depth: int) -> SpeedAtDepth:
        """Of that K."""
        return self.depths[depth - 1]


def speed(cost: StepCost, lengths: Sequence[AcceptLength]) -> SpeedUnderLoad:
    """What a drafter brings under a load.

    Args:
        lengths: with K = 1, 2 … drafted tokens.
    """
    depths, best = _fastest(lengths, cost.target, cost.step)

    halved = cost.shrunk(SMALLER)
    smaller, of_smaller = _fastest(lengths, cost.target, halved.step)
    top = depths[best - 1].rate.value
    return SpeedUnderLoad(
        cost=cost,
        depths=depths,
        best=best,
        near=tuple(row.depth for row in depths[: best - 1] if row.rate.value >= (1 - NEAR) * top),
        smaller=smaller[of_smaller - 1],
        spare=1 - halved.step(best) / cost.step(best),
    )


def speed_at(cost: StepCost, depth: int, length: Measured) -> SpeedAtDepth:
    """What a drafter with this accept length brings with one K under a load."""
    return _at_depth(depth, length, cost.target, cost.step(depth))


def _fastest(
    lengths: Sequence[AcceptLength], target: float, step: Callable[[int], float]
) -> tuple[tuple[SpeedAtDepth, ...], int]:
    """Every K, and the one with the most tokens per second; the smallest of equals."""
    depths = tuple(_at_depth(k, one.length, target, step(k)) for k, one in enumerate(lengths, 1))
    return depths, max(depths, key=lambda row: (row.rate.value, -row.depth)).depth


def _at_depth(depth: int, length: Measured, target: float, step: float) -> SpeedAtDepth:
    return SpeedAtDepth(
        depth=depth,
        step=step,
        rate=_scaled(length, 1000 / step),
        gain=_scaled(length, target / step),
        break_even=step / target,
    )


def _scaled(measured: Measured, factor: float) -> Measured:
    low, high = measured.interval.low * factor, measured.interval.high * factor
    return Measured(measured.value * factor, Interval(low, high))
