"""Certifying a drafter out of several on prompts that nobody has looked at.

A search that measures many drafters finds one that looks good by luck, so what it finds is judged on other prompts,
which the search never saw. Of at most k candidates, fixed before those prompts are opened, each is judged at one-sided
level alpha / k (Bonferroni): that any drafter is certified which loses more than was allowed has then a probability of
alpha at most, however alike or different the candidates are.

A candidate is certified where the lower bound of its ratio of accept lengths lies above 1 - δ. The bound is the lower
of two, as for every interval of a report (`draftconv.report.statistics`):

    bootstrap  the quantile alpha / k over 10,000 resamples of the clusters
    delta      ratio · exp(-t(n - 1) · sd(ψ) / √n), t the quantile 1 - alpha / k
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from draftconv.errors import UsageError
from draftconv.report.resampling import RESAMPLES, bounds, resampled
from draftconv.report.statistics import FEWEST_CLUSTERS, POWER, Pair, tails
from draftconv.report.student import t_quantile

if TYPE_CHECKING:
    from draftconv.report.resampling import Bounds, Floats

ALPHA = 0.05
"""How often a search may hand over a drafter that loses more than was allowed."""
FEWEST_BELOW = 20
"""Resamples below a bound: with fewer of them it is a matter of luck where it lies."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the unseen prompts say of one candidate.

    Attributes:
        ratio: of accept lengths, candidate to reference. `low`: its one-sided lower bound.
        level: one-sided, alpha / k. `max_loss`: δ.
        clusters: prompts that it rests on. `spread`: sd(ψ) over them.
    """

    ratio: float
    low: float
    level: float
    max_loss: float
    clusters: int
    spread: float

    @property
    def passed(self) -> bool:
        """Whether the loss lies below what was allowed, at this level."""
        return self.clusters >= FEWEST_CLUSTERS and self.low > 1 - self.max_loss


def certify(
    candidates: Mapping[str, Sequence[Pair]], max_loss: float, *, alpha: float = ALPHA
) -> dict[str, Certificate]:
    """Judge candidates on unseen prompts, all of them together at level `alpha`.

    Args:
        candidates: name → every request of the unseen prompts, with the counts of the reference and of this candidate.
        max_loss: δ, the share of accept length that may be lost, 0 < δ < 1.

    Raises:
        UsageError: no candidates, or more than `alpha` can be divided among; as `estimate` for the requests.
    """
    if not candidates:
        raise UsageError("there is no candidate to certify", cure="allow a larger loss, or give more prompts")
    level = share_of(alpha, len(candidates))
    return {name: _judge(pairs, level, max_loss) for name, pairs in candidates.items()}


def share_of(alpha: float, candidates: int) -> float:
    """The one-sided level of each of some candidates, alpha / k.

    Raises:
        UsageError: alpha is no share, or too small for so many.
    """
    if not 0 < alpha <= 0.5:
        raise UsageError(f"an error rate of {alpha:g} is not between 0 and 0.5", cure="give a share: 0.05 is 5 %")
    if (level := alpha / candidates) * RESAMPLES < FEWEST_BELOW:
        raise UsageError(
            f"an error rate of {alpha:g} divided among {candidates} candidates is {level:.2g} for each",
            why=f"fewer than {FEWEST_BELOW} of {RESAMPLES:,} resamples would lie below the bound",
            cure="certify fewer candidates, or allow a larger error rate",
        )
    return level


def lower_bounds(sizes: Sequence[int], accepted: Floats, steps: Floats, level: float) -> Bounds:
    """Ratios of pooled accept lengths whose `low` is the one-sided bound at a level; many runs at once.

    Args:
        sizes: clusters per category, in the order of the rows.
        accepted: A of [C, 2, …], reference and candidate; `steps`: D alike.
    """
    import numpy as np

    draws_B2 = resampled(sizes, np.stack((accepted, steps), 1))
    return bounds(accepted, steps, draws_B2[:, 0], draws_B2[:, 1], level)


def certifiable_loss(spread: float, clusters: int, level: float) -> float:
    """The smallest loss that so many prompts can certify: a drafter that loses nothing passes nine times of ten.

    δ = 1 - exp(-(t + z) · sd(ψ) / √n), with t the quantile 1 - level of Student's t and z = 1.28.

    Args:
        spread: sd(ψ) over clusters, as drafters alike had it. `clusters`: n.
    """
    if clusters < FEWEST_CLUSTERS:
        return 1.0
    t, z = t_quantile(1 - level, clusters - 1), NormalDist().inv_cdf(POWER)
    return 1 - math.exp(-(t + z) * spread / math.sqrt(clusters))


def _judge(pairs: Sequence[Pair], level: float, max_loss: float) -> Certificate:
    sizes, tails_C2J = tails([pair for pair in pairs if pair.counted])
    found = lower_bounds(sizes, tails_C2J[..., 1:].sum(-1), tails_C2J[..., 0], level)
    return Certificate(float(found.ratio), float(found.low), level, max_loss, len(tails_C2J), float(found.spread))
