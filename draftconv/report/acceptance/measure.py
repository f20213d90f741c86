"""Accept length of one drafter with intervals, over any slices of the same prompts at once.

As in `draftconv.report.statistics`, a cluster is a prompt with all its turns, categories are strata, and an interval is
the wider of bootstrap and delta method. All slices share the resamples, which are drawn for many of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report.intervals import Interval, Measured, pooled
from draftconv.report.resampling import resampled

if TYPE_CHECKING:
    from draftconv.report.resampling import Floats

K = TypeVar("K")
SHARE = Interval(0.0, 1.0)
COLUMNS = 512
"""Sums that are resampled at a time, 40 MB of them; the result does not depend on it."""


@dataclass(frozen=True, slots=True)
class AcceptLength:
    """A drafter over some verify steps.

    Attributes:
        prompts: with at least one of the steps. `steps`, `accepted`: counted, or expected where drafts are drawn.
        length: AL = 1 + accepted / steps.
        reached: p_j, j = 1…K, the share of steps that accepted at least j tokens.
        conditional: c_j = p_j / p_{j-1}; None where so few steps came that far that a resample may have none.
    """

    prompts: int
    steps: float
    accepted: float
    length: Measured
    reached: tuple[Measured, ...]
    conditional: tuple[Measured | None, ...]


def measure(category_of: Mapping[str, str], slices: Mapping[K, Mapping[str, Counts]]) -> dict[K, AcceptLength]:
    """The figures of every slice that has a step.

    Args:
        category_of: cluster → its category.
        slices: what is measured → the counts of the clusters that have steps in it.

    Raises:
        UsageError: there is no cluster.
    """
    import numpy as np

    if not category_of:
        raise UsageError("there are no requests to measure", cure="give a trace with at least one")
    clusters = sorted(category_of, key=lambda cluster: (category_of[cluster], cluster))
    sizes = [len(list(group)) for _, group in groupby(clusters, key=category_of.__getitem__)]
    tails = {key: _tails(clusters, part) for key, part in slices.items() if any(c.steps for c in part.values())}
    measured = {}
    for batch in _batches(tails):
        draws_BX, first = resampled(sizes, np.concatenate([tails[key] for key in batch], axis=1)), 0
        for key in batch:
            width = tails[key].shape[1]
            measured[key] = _measured_slice(tails[key], draws_BX[:, first : first + width])
            first += width
    return measured


def _batches(tails: Mapping[K, Floats]) -> Iterator[list[K]]:
    """Slices in their order, as many at a time as have `COLUMNS` together, and at least one."""
    batch: list[K] = []
    columns = 0
    for key, tails_CJ in tails.items():
        if batch and columns + tails_CJ.shape[1] > COLUMNS:
            yield batch
            batch, columns = [], 0
        batch.append(key)
        columns += tails_CJ.shape[1]
    if batch:
        yield batch


def _tails(clusters: Sequence[str], part: Mapping[str, Counts]) -> Floats:
    """[C, K + 1]: steps of each cluster that accepted at least 0, 1 … K tokens; zeros for clusters without any."""
    import numpy as np

    width = len(next(iter(part.values())).histogram)
    histograms_CJ = np.array(
        [part[cluster].histogram if cluster in part else (0,) * width for cluster in clusters], np.float64
    )
    return np.flip(np.cumsum(np.flip(histograms_CJ, 1), 1), 1)


def _measured_slice(tails_CJ: Floats, draws_BJ: Floats) -> AcceptLength:
    tails_CJ, depth = tails_CJ[tails_CJ[:, 0] > 0], tails_CJ.shape[1] - 1

    def rate(part: int, whole: int) -> Measured | None:
        if not draws_BJ[:, whole].all():  # a small slice may have no prompt in a resample of all
            return None
        return pooled(tails_CJ[:, part], tails_CJ[:, whole], draws_BJ[:, part], draws_BJ[:, whole], SHARE)

    steps, accepted = tails_CJ[:, 0], tails_CJ[:, 1:].sum(1)
    possible = Interval(1.0, float(depth + 1))
    if draws_BJ[:, 0].all():
        length = pooled(accepted, steps, draws_BJ[:, 1:].sum(1), draws_BJ[:, 0], possible, plus=1.0)
    else:
        length = Measured(1.0 + float(accepted.sum() / steps.sum()), possible)
    return AcceptLength(
        prompts=len(tails_CJ),
        steps=_whole(float(steps.sum())),
        accepted=_whole(float(accepted.sum())),
        length=length,
        reached=tuple(
            rate(j, 0) or Measured(float(tails_CJ[:, j].sum() / steps.sum()), SHARE) for j in range(1, depth + 1)
        ),
        conditional=tuple(rate(j, j - 1) for j in range(1, depth + 1)),
    )


def _whole(count: float) -> float:
    """A count as the whole number that it is, where it is one."""
    return int(count) if count.is_integer() else count
