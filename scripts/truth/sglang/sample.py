"""What a draft model is tried with: tokens, captured states, a state of its own, and the target's tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 80
"""Tokens of a step: more than any window of the cases."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The input of two steps.

    Attributes:
        tokens: int64 [T]. `fed`: a state of the drafter's own width, float32 [T, H].
        width: of one captured state. `positions`: that the target serves.
        embedding, head: the target's tables, [V, W].
    """

    tokens: Tensor
    fed: Tensor
    width: int
    positions: int | None
    embedding: Tensor
    head: Tensor

    def states(self, boundaries: int | None) -> Tensor:
        """Captured states side by side, float32 [T, A*W]; None: the last one alone."""
        count = 1 if boundaries is None else boundaries
        return drawn(len(self.tokens), count * self.width, seed=count)


def drawn(rows: int, width: int, seed: int) -> Tensor:
    """Numbers like those of a hidden state: float32 [rows, width], always the same."""
    return torch.randn((rows, width), generator=torch.Generator().manual_seed(seed))
