"""What the counts of two arms say about each other: accept length, its ratio, and how far both can be trusted.

The same requests run on both arms, so resampling takes both arms of a prompt together: what
differs from prompt to prompt (about 12 % of accept length) cancels. A cluster is a prompt with
all its turns, since the turns of one conversation are no independent evidence; categories are
strata. Every interval is 95 %, two-sided, and made of two:

    bootstrap  2.5th and 97.5th percentile over 10,000 resamples of the clusters
    delta      value ± t(n - 1) · sd(ψ) / √n, ψ the influence of a cluster on the value

It reaches from the lower low to the higher high. The percentile bootstrap alone is too narrow
for few clusters and would pass too many bad drafters; widening both ends alike means that a fail
needs as much evidence as a pass, and what has neither is called inconclusive.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist
from typing import TYPE_CHECKING, Protocol, TypeVar

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report.intervals import Interval, Measured, measured, pooled
from draftconv.report.resampling import OUTSIDE, bounds, influence, resampled
from draftconv.report.student import t_quantile

if TYPE_CHECKING:
    from draftconv.report.resampling import Floats

FEWEST_CLUSTERS = 30
"""Below, no interval is trusted enough for a verdict."""
MOST_PROMPTS = 10_000
"""What would need more prompts than that is not settled by prompts."""
POWER = 0.9
DISAGREE = 1.25


@dataclass(frozen=True, slots=True)
class Pair:
    """One request, run on both arms.

    Attributes:
        id: unique in the run. `cluster`: the prompt it belongs to, with all its turns.
        category: the same for all requests of a cluster.
    """

    id: str
    cluster: str
    category: str
    reference: Counts
    candidate: Counts

    @property
    def equal(self) -> bool:
        """Whether both arms have the same steps, accepted tokens and histogram."""
        return self.reference == self.candidate

    @property
    def counted(self) -> bool:
        """Whether both arms have a step; the statistics take no other pair."""
        return bool(self.reference.steps and self.candidate.steps)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Two arms compared over some requests.

    Attributes:
        reference: pooled accept length AL_R. `candidate`: AL_Q.
        ratio: AL_Q / AL_R.
        interval: of the ratio, from `bootstrap` and `delta` together: what the gate looks at.
        spread: sd(ψ) over clusters, ψ the influence of a cluster on log(ratio); 0 for a single cluster.
    """

    requests: int
    clusters: int
    reference: Measured
    candidate: Measured
    ratio: float
    interval: Interval
    bootstrap: Interval
    delta: Interval
    spread: float

    @property
    def disagree(self) -> bool:
        """Whether one of the two intervals is more than 25 % wider than the other: too few clusters."""
        narrow, wide = sorted(math.log(part.high / part.low) for part in (self.bootstrap, self.delta))
        return wide > DISAGREE * narrow


@dataclass(frozen=True, slots=True)
class PairedRate:
    """A share of steps on both arms; `difference` is candidate - reference, resampled together."""

    reference: Measured
    candidate: Measured
    difference: Measured


@dataclass(frozen=True, slots=True)
class Depth:
    """How the j-th drafted token fares.

    Attributes:
        depth: j = 1…K.
        reached: p_j, the share of steps that accepted at least j tokens.
        conditional: c_j = p_j / p_{j-1}; None where so few steps came that far that a resample may have none.
    """

    depth: int
    reached: PairedRate
    conditional: PairedRate | None


@dataclass(frozen=True, slots=True)
class Discordant:
    """First drafted tokens of one request, at every position and not only where a step started.

    Attributes:
        lost: positions where the reference is right and the candidate wrong. `gained`: the reverse.
    """

    cluster: str
    category: str
    positions: int
    lost: int
    gained: int


@dataclass(frozen=True, slots=True)
class Discordance:
    """Shares of all positions; `net` is lost - gained. A diagnosis: nothing is gated on it."""

    positions: int
    lost: Measured
    gained: Measured
    net: Measured


Row = TypeVar("Row", Pair, Discordant)


class Labelled(Protocol):
    """Something of a prompt."""

    @property
    def cluster(self) -> str: ...
    @property
    def category(self) -> str: ...


def called(category: str) -> str:
    """A category in words: prompts need not have one."""
    return category or "(none)"


# ── figures ────────────────────────────────────────────────────────────────────────


def estimate(pairs: Iterable[Pair]) -> Estimate:
    """Pooled accept length of both arms and their ratio, with intervals.

    The same pairs give the same result to the last bit, in any order.

    Raises:
        UsageError: no pair, one without a step, one that is there twice, several depths, or a
            cluster in several categories.
    """
    pairs = tuple(pairs)
    sizes, tails_C2J = tails(pairs)
    draws_B2J = resampled(sizes, tails_C2J)
    accepted, steps = tails_C2J[..., 1:].sum(-1), tails_C2J[..., 0]
    accepted_draws, steps_draws = draws_B2J[..., 1:].sum(-1), draws_B2J[..., 0]
    limits = bounds(accepted, steps, accepted_draws, steps_draws)
    longest = tails_C2J.shape[-1]
    possible = Interval(1 / longest, float(longest))
    reference, candidate = (
        pooled(
            accepted[:, arm],
            steps[:, arm],
            accepted_draws[:, arm],
            steps_draws[:, arm],
            Interval(1.0, float(longest)),
            plus=1.0,
        )
        for arm in (0, 1)
    )
    return Estimate(
        requests=len(pairs),
        clusters=len(tails_C2J),
        reference=reference,
        candidate=candidate,
        ratio=float(limits.ratio),
        interval=Interval(float(limits.low), float(limits.high)).clipped(possible),
        bootstrap=Interval(float(limits.bootstrap_low), float(limits.bootstrap_high)),
        delta=Interval(float(limits.delta_low), float(limits.delta_high)).clipped(possible),
        spread=float(limits.spread),
    )


def by_category(pairs: Iterable[Pair]) -> dict[str, Estimate]:
    """The same within each category, categories in alphabetical order."""

    def category(pair: Pair) -> str:
        return pair.category

    return {name: estimate(group) for name, group in groupby(sorted(pairs, key=category), key=category)}


def by_depth(pairs: Iterable[Pair]) -> tuple[Depth, ...]:
    """Acceptance of the first, second … K-th drafted token on both arms, with intervals.

    Raises:
        UsageError: as `estimate`.
    """
    sizes, tails_C2J = tails(tuple(pairs))
    draws_B2J = resampled(sizes, tails_C2J)

    def rate(part: int, whole: int) -> PairedRate | None:
        return _paired(tails_C2J[..., part], tails_C2J[..., whole], draws_B2J[..., part], draws_B2J[..., whole])

    depths = []
    for j in range(1, tails_C2J.shape[-1]):
        if (reached := rate(j, 0)) is not None:
            depths.append(Depth(j, reached, rate(j, j - 1)))
    return tuple(depths)


def discordance(requests: Iterable[Discordant]) -> Discordance:
    """How often the arms disagree on the first drafted token, resampled by prompt.

    Raises:
        UsageError: no request has a position.
    """
    import numpy as np

    ordered = sorted((row for row in requests if row.positions), key=lambda row: (row.category, row.cluster))
    if not ordered:
        raise UsageError("there is no position to compare", cure="give at least one request of two or more tokens")
    sizes, groups = _strata(ordered)
    counts_C3 = np.array(
        [[sum(getattr(row, name) for row in rows) for name in ("positions", "lost", "gained")] for rows in groups],
        np.float64,
    )
    draws_B3 = resampled(sizes, counts_C3)
    positions, lost, gained = counts_C3.T
    positions_drawn, lost_drawn, gained_drawn = draws_B3.T
    share = Interval(0.0, 1.0)
    return Discordance(
        positions=int(positions.sum()),
        lost=pooled(lost, positions, lost_drawn, positions_drawn, share),
        gained=pooled(gained, positions, gained_drawn, positions_drawn, share),
        net=pooled(lost - gained, positions, lost_drawn - gained_drawn, positions_drawn, Interval(-1.0, 1.0)),
    )


def more_prompts(result: Estimate, margin: float) -> int | None:
    """How many more prompts would settle an inconclusive result, if the ratio stays what it is.

    n = ((t + z) · sd(ψ) / |log(ratio) - log(1 - δ)|)² prompts in all leave the margin outside the
    interval nine times of ten (z = 1.28); never fewer than 30, and at least one more.

    Returns:
        None if more than 10,000 were needed: the ratio sits on the margin.
    """
    gap = abs(math.log(result.ratio) - math.log(1 - margin))
    t = t_quantile(1 - OUTSIDE, max(result.clusters, FEWEST_CLUSTERS) - 1)
    scaled_spread = (t + NormalDist().inv_cdf(POWER)) * result.spread
    if scaled_spread >= gap * math.sqrt(MOST_PROMPTS):
        return None
    enough = math.ceil((scaled_spread / gap) ** 2) if scaled_spread else 0
    return max(enough, FEWEST_CLUSTERS, result.clusters + 1) - result.clusters


# ── clusters ───────────────────────────────────────────────────────────────────────


def tails(pairs: Sequence[Pair]) -> tuple[list[int], Floats]:
    """Clusters per category, and [C, 2, K + 1]: steps of each arm that accepted at least 0, 1 … K tokens.

    The first is D, and the others add up to A: a step that accepted j tokens is in j of them.
    """
    import numpy as np

    if not pairs:
        raise UsageError("there are no requests to compare", cure="give at least one that both arms answered")
    name, times = Counter(pair.id for pair in pairs).most_common(1)[0]
    if times > 1:
        raise UsageError(f"request {name} is there {times} times", cure="give every request an id of its own")
    if empty := [pair.id for pair in pairs if not pair.counted]:
        raise UsageError(f"request {empty[0]} has no verify step on one of the arms", cure="leave it out")
    if len({counts.depth for pair in pairs for counts in (pair.reference, pair.candidate)}) > 1:
        raise UsageError("the requests were not all drafted to the same depth", cure="run both arms with the same K")
    ordered = sorted(pairs, key=lambda pair: (pair.category, pair.cluster))
    sizes, groups = _strata(ordered)
    histograms_C2J = np.array(
        [
            [
                Counts.pooled(pair.reference for pair in group).histogram,
                Counts.pooled(pair.candidate for pair in group).histogram,
            ]
            for group in groups
        ],
        np.float64,
    )
    return sizes, np.flip(np.cumsum(np.flip(histograms_C2J, -1), -1), -1)


def _strata(ordered: Sequence[Row]) -> tuple[list[int], list[list[Row]]]:
    """Clusters per category, and the rows of each cluster."""
    groups = [list(rows) for _, rows in groupby(ordered, key=lambda row: (row.category, row.cluster))]
    one_category(rows[0] for rows in groups)
    return [len(list(same)) for _, same in groupby(groups, key=lambda rows: rows[0].category)], groups


def one_category(rows: Iterable[Labelled]) -> dict[str, str]:
    """Cluster → its category.

    Raises:
        UsageError: a cluster is in several.
    """
    categories: dict[str, str] = {}
    for row in rows:
        if (other := categories.setdefault(row.cluster, row.category)) != row.category:
            raise UsageError(
                f"prompt {row.cluster} is in two categories, {called(other)} and {called(row.category)}",
                cure="give all requests of a prompt the same category",
            )
    return categories


def _paired(part_C2: Floats, whole_C2: Floats, parts_B2: Floats, wholes_B2: Floats) -> PairedRate | None:
    """Σ part / Σ whole on both arms; None where a resample has nothing to divide by."""
    if not wholes_B2.all():
        return None
    reference, candidate = (
        pooled(part_C2[:, arm], whole_C2[:, arm], parts_B2[:, arm], wholes_B2[:, arm], Interval(0.0, 1.0))
        for arm in (0, 1)
    )
    psi_C2, draws_B2 = influence(part_C2, whole_C2), parts_B2 / wholes_B2
    difference = measured(
        candidate.value - reference.value,
        psi_C2[:, 1] - psi_C2[:, 0],
        draws_B2[:, 1] - draws_B2[:, 0],
        Interval(-1.0, 1.0),
    )
    return PairedRate(reference, candidate, difference)
