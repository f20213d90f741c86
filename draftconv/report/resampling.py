"""The paired cluster bootstrap and the delta method, on arrays.

Shape suffixes: C clusters, sorted by category; B resamples; `…` anything, resampled alike. That
is how a simulation takes thousands of runs through the very code that judges one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from draftconv.report.student import t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

RESAMPLES = 10_000
OUTSIDE = 0.025
"""The share that lies below a 95 % interval, and as much above."""
SEED = 1_700_061
BLOCK = 500
"""Resamples drawn at a time; the result does not depend on it."""


class Bounds(NamedTuple):
    """AL_Q / AL_R, sd(ψ), and the ends of three intervals: the gate's, bootstrap, delta; each of shape […]."""

    ratio: Floats
    spread: Floats
    low: Floats
    high: Floats
    bootstrap_low: Floats
    bootstrap_high: Floats
    delta_low: Floats
    delta_high: Floats


def resampled(sizes: Sequence[int], values: Floats) -> Floats:
    """Sums [B, …] of whole numbers [C, …] over resamples of the clusters.

    Each resample draws as many clusters of every stratum as it has, with replacement. The draws
    come from the raw stream of PCG64, which NumPy keeps the same in every version (it does not
    promise that of its distributions), and sums of whole numbers do not depend on their order:
    the same counts give the same bytes everywhere. Mapping 32 random bits to one of m clusters
    by multiplication favours some by less than m / 2³².

    Args:
        sizes: clusters per stratum, in the order of the rows; they add up to C.
    """
    import numpy as np

    clusters = len(values)
    stream = np.random.PCG64(SEED)
    of_stratum = np.array(sizes, np.uint64)
    size_C = np.repeat(of_stratum, sizes)
    first_C = np.repeat(np.cumsum(of_stratum) - of_stratum, sizes)
    sums = np.empty((RESAMPLES, values[0].size))
    for block in range(0, RESAMPLES, BLOCK):
        raw_bC = stream.random_raw(BLOCK * clusters).reshape(BLOCK, clusters) >> np.uint64(32)
        drawn_bC = (first_C + ((raw_bC * size_C) >> np.uint64(32))).astype(np.int64)
        drawn_bC += np.arange(BLOCK)[:, None] * clusters
        times_bC = np.bincount(drawn_bC.ravel(), minlength=BLOCK * clusters).reshape(BLOCK, clusters)
        np.matmul(times_bC.astype(np.float64), values.reshape(clusters, -1), out=sums[block : block + BLOCK])
    return sums.reshape(RESAMPLES, *values.shape[1:])


def percentiles(draws: Floats, outside: float = OUTSIDE) -> tuple[Floats, Floats]:
    """The values of [B, …] with this share of the resamples below and as many above, as they are: none interpolated."""
    import numpy as np

    first = math.floor(RESAMPLES * outside)
    last = RESAMPLES - 1 - first
    ordered = np.partition(draws, (first, last), axis=0)
    return ordered[first], ordered[last]


def influence(part: Floats, whole: Floats) -> Floats:
    """ψ [C, …] of each cluster on Σ part / Σ whole: (part - r · whole) / mean(whole), r the pooled value."""
    pooled: Floats = part.sum(0) / whole.sum(0)
    share: Floats = (part - pooled * whole) / whole.mean(0)
    return share


def spread(psi: Floats) -> Floats:
    """sd(ψ) over clusters [C, …] with n - 1 in the divisor; 0 for a single cluster."""
    import numpy as np

    deviation: Floats = np.sqrt((psi * psi).sum(0) / max(len(psi) - 1, 1))
    return deviation


def reach(psi: Floats, outside: float = OUTSIDE) -> Floats:
    """Half the delta method's interval, t(n - 1) · sd(ψ) / √n; infinite for a single cluster, which tells no spread."""
    import numpy as np

    clusters = len(psi)
    if clusters == 1:
        return np.full(psi.shape[1:], np.inf)
    return t_quantile(1 - outside, clusters - 1) / math.sqrt(clusters) * spread(psi)


def log_influence(accepted: Floats, steps: Floats) -> tuple[Floats, Floats]:
    """AL_Q / AL_R […] and each cluster's influence on its logarithm [C, …].

    ψ = (A_Q - a_Q D_Q) / (mean D_Q · AL_Q) - (A_R - a_R D_R) / (mean D_R · AL_R), a = ΣA / ΣD.

    Args:
        accepted: A of [C, 2, …], reference and candidate; `steps`: D alike.
    """
    length = 1 + accepted.sum(0) / steps.sum(0)
    psi_C2 = influence(accepted, steps) / length
    return length[1] / length[0], psi_C2[:, 1] - psi_C2[:, 0]


def bounds(
    accepted: Floats, steps: Floats, accepted_draws: Floats, steps_draws: Floats, outside: float = OUTSIDE
) -> Bounds:
    """The ratio of pooled accept lengths with its intervals.

    The delta interval is ratio · exp(± t · sd(ψ) / √n): it stays positive, and swapping the arms inverts it.

    Args:
        accepted: A of [C, 2, …], reference and candidate; `steps`: D alike.
        accepted_draws: their sums over resamples [B, 2, …]; `steps_draws` alike.
        outside: the share that lies beyond either end.
    """
    import numpy as np

    ratio, psi_C = log_influence(accepted, steps)
    factor = np.exp(reach(psi_C, outside))
    lengths_B2 = 1 + accepted_draws / steps_draws
    low, high = percentiles(lengths_B2[:, 1] / lengths_B2[:, 0], outside)
    return Bounds(
        ratio,
        spread(psi_C),
        np.minimum(low, ratio / factor),
        np.maximum(high, ratio * factor),
        low,
        high,
        ratio / factor,
        ratio * factor,
    )
