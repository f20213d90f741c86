"""Which tokens a head keeps: those that must stay, then those that are written most, ties by id."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]
    Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WeightedCounts:
    """The tokens of one kind of text: int64 [V], and how much it weighs beside the others."""

    counts_V: Counts
    weight: float = 1.0


def scores(kinds: Sequence[WeightedCounts]) -> Scores:
    """How likely each token is in a mixture of the kinds by their weights: float64 [V], 1 in all.

    Raises:
        UsageError: there is no token.
    """
    import numpy as np

    filled = [kind for kind in kinds if kind.counts_V.any()]
    if not filled:
        raise UsageError("there are no tokens to choose rows by", cure="give more text")
    whole = sum(kind.weight for kind in filled)
    mixed_V: Scores = np.zeros(len(filled[0].counts_V), np.float64)
    for kind in filled:
        mixed_V += (kind.weight / whole) * kind.counts_V / kind.counts_V.sum()
    return mixed_V


def choose(score_V: Scores, rows: Sequence[int], forced: Collection[int], vocab: int) -> tuple[int, ...]:
    """The tokens of a head with `vocab` rows, ascending.

    Args:
        rows: ids that the head has now. `forced`: those of them that stay whatever their score.

    Raises:
        UsageError: there are not so many rows, or more that have to stay.
    """
    import numpy as np

    stay = sorted({*forced} & {*rows})
    if not len(stay) <= vocab <= len(rows):
        raise UsageError(f"--vocab {vocab}: {len(stay)} tokens have to stay, and the head has {len(rows)} rows")
    free = np.setdiff1d(np.asarray(rows, np.int64), np.asarray(stay, np.int64))  # ascending
    best = free[np.argsort(-score_V[free], kind="stable")[: vocab - len(stay)]]
    return tuple(sorted((*stay, *best.tolist())))
