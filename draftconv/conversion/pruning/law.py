"""What a pruned head costs, told from what it lacks.

    loss = (1.0 … 1.25) · (1 - 1/AL) · m

is the share of accept length that is lost, AL the accept length before, and m the share of accepted tokens that the
head cannot draft any more. A missing token ends the chain in which it would have been accepted, so that what was to
follow it is lost too, but for what the next step makes up: 1 - 1/AL is the share of all tokens that drafting brings.
Source: 224 kept sets on five trained drafters, replayed; `scripts/prune-law` holds it against the fixtures
(docs/prune.md).
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST, MOST = 1.0, 1.25
"""Where the factor lay."""


@dataclass(frozen=True, slots=True)
class PredictedLoss:
    """Shares of the accept length."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{100 * self.least:.2f} % to {100 * self.most:.2f} %"


def predicted_loss(missing: float, accept_length: float) -> PredictedLoss:
    """The loss of accept length that the law predicts.

    Args:
        missing: share of accepted tokens that cannot be drafted any more, 0 … 1.
        accept_length: before, at least 1.
    """
    brought = 1 - 1 / accept_length
    return PredictedLoss(*(min(factor * brought * missing, brought) for factor in (LEAST, MOST)))
