"""How likely a server's counts are, if it reads the drafter in some way.

A replay says what every request would count. An engine in another arithmetic departs from it where two tokens are
nearly alike, so a request is drawn from a mixture: with probability 1 - e exactly what the replay says, else its steps
fall as a multinomial under the replay's own rates, given how many they are:

    P(h | r) = (1 - e) [h = r] + e · n! / Π h_j! · Π q_j^h_j,    q_j = (r_j + w Q_j) / (R + w)

h_j and r_j are counted and replayed steps that accepted j tokens, n and R all of them, Q_j the share of such steps in
the replay of all requests (half a step added to each, so that none is impossible), w = `PRIOR` steps. e is not known:
the likelihood is the mean over `NOISE`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftconv.reference.accept_length import Counts

PRIOR = 4.0
"""Steps of all requests that stand beside those of one."""
NOISE = (0.01, 0.03, 0.1, 0.3, 0.6, 0.9)
"""Shares of requests that depart from the replay, each as likely as the others before anything is counted."""


def log_likelihood(counted: Sequence[Counts], replayed: Sequence[Counts]) -> float:
    """In nats, of every request together.

    Args:
        counted: by the server. `replayed`: of the same requests, by the same K.
    """
    shares = _shares(replayed)
    rows = [
        (ours == theirs, _multinomial(ours, _mixed(theirs, shares)))
        for ours, theirs in zip(counted, replayed, strict=True)
    ]
    return _mean_of_logs(
        [sum(_log_sum(math.log1p(-noise) if equal else -math.inf, math.log(noise) + chance) for equal, chance in rows)
         for noise in NOISE]
    )  # fmt: skip


def _shares(replayed: Sequence[Counts]) -> list[float]:
    """Q_j."""
    pooled = Counts.pooled(replayed)
    width = pooled.depth + 1
    return [(count + 0.5) / (pooled.steps + 0.5 * width) for count in pooled.histogram]


def _mixed(replayed: Counts, shares: Sequence[float]) -> list[float]:
    """q_j."""
    return [
        (count + PRIOR * share) / (replayed.steps + PRIOR)
        for count, share in zip(replayed.histogram, shares, strict=True)
    ]


def _multinomial(counted: Counts, rates: Sequence[float]) -> float:
    steps = math.lgamma(counted.steps + 1)
    return steps + sum(
        count * math.log(rate) - math.lgamma(count + 1) for count, rate in zip(counted.histogram, rates, strict=True)
    )


def _log_sum(one: float, other: float) -> float:
    most = max(one, other)
    return most + math.log(math.exp(one - most) + math.exp(other - most))


def _mean_of_logs(values: Sequence[float]) -> float:
    most = max(values)
    return most + math.log(sum(math.exp(value - most) for value in values) / len(values))


def elsewhere(counted: Sequence[Counts], replayed: Sequence[Counts]) -> float:
    """How many steps accept another number of tokens than the replay says, as a share of those that accept any.

    Half the sum of |h_j - r_j| over requests, by the larger number of steps with j > 0: 0 where all is as replayed, 1
    or more where nothing is. Steps that accept nothing are alike whatever is wrong, so they prove nothing.
    """
    pairs = list(zip(counted, replayed, strict=True))
    moved = sum(abs(a - b) for one, other in pairs for a, b in zip(one.histogram, other.histogram, strict=True))
    most = sum(max(sum(one.histogram[1:]), sum(other.histogram[1:])) for one, other in pairs)
    return moved / (2 * max(most, 1))


def departure(counted: Sequence[Counts], replayed: Sequence[Counts], j: int) -> tuple[float, float]:
    """c_j of the server minus c_j of the replay, and its standard error: a jackknife over requests.

    c_j is how often token j was accepted where those before it were; NaN where no step came that far.
    """
    rows = [
        (sum(one.histogram[j:]), sum(one.histogram[j - 1 :]), sum(other.histogram[j:]), sum(other.histogram[j - 1 :]))
        for one, other in zip(counted, replayed, strict=True)
    ]
    totals = [sum(column) for column in zip(*rows, strict=True)]
    whole = _difference(totals)
    without = [_difference([total - part for total, part in zip(totals, row, strict=True)]) for row in rows]
    mean = sum(without) / len(without)
    variance = (len(without) - 1) / len(without) * sum((value - mean) ** 2 for value in without)
    return whole, math.sqrt(variance)


def _difference(sums: Sequence[float]) -> float:
    ours, before, theirs, theirs_before = sums
    return ours / before - theirs / theirs_before if before and theirs_before else math.nan
