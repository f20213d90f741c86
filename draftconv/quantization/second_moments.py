"""What GPTQ knows of the inputs of a weight: their second moment Σ x xᵀ, and some rows that it never saw.

Shapes: I inputs of a weight, N rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftconv.quantization.threads import workers

AT_ONCE = 1024
"""Rows that are multiplied at a time, about: a product of fewer spends its time on reading and writing the sum."""

SIDE = 1024
"""Of the square blocks in which a second moment is added up."""


@dataclass(slots=True)
class SecondMoment:
    """Σ x xᵀ of all rows that were added, float32.

    Only blocks on and below the diagonal are added up, until `mirror` completes the rest. A block is one thread's, so
    its bits depend on the rows and on how they come, not on the number of threads.

    Attributes:
        sum_II: of the rows that were flushed. `rows`: how many they are.
    """

    sum_II: Tensor
    rows: int = 0
    _waiting: list[Tensor] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, inputs: int, device: torch.device) -> SecondMoment:
        """Of no rows yet."""
        return cls(torch.zeros(inputs, inputs, device=device))

    def waiting(self) -> Tensor:
        """Rows that are not in the sum yet: [N, I]."""
        return torch.cat([self.sum_II.new_empty(0, len(self.sum_II)), *self._waiting])

    def add(self, x_NI: Tensor) -> None:
        """Take in rows, in whatever float dtype; they are added up once there are enough of them."""
        self._waiting.append(x_NI.detach().to(self.sum_II))
        if sum(map(len, self._waiting)) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Add up the rows that wait."""
        if not self._waiting:
            return
        x_NI, self._waiting = torch.cat(self._waiting), []
        self.rows += len(x_NI)

        def add_block(corner: tuple[int, int]) -> None:
            at, to = (slice(start, start + SIDE) for start in corner)
            self.sum_II[at, to].addmm_(x_NI[:, at].T, x_NI[:, to])

        with workers(x_NI.device) as each:
            each(add_block, _lower_blocks(len(self.sum_II)))

    def mirror(self) -> Tensor:
        """The whole, symmetric: [I, I]; rows that wait are added up first."""
        self.flush()
        for start, other in _lower_blocks(len(self.sum_II)):
            at, to = slice(start, start + SIDE), slice(other, other + SIDE)
            if start == other:
                lower = self.sum_II[at, to].tril()
                self.sum_II[at, to] = lower + lower.tril(-1).T
            else:
                self.sum_II[to, at] = self.sum_II[at, to].T
        return self.sum_II


def _lower_blocks(inputs: int) -> Iterator[tuple[int, int]]:
    """First row and column of every block on and below the diagonal."""
    return ((start, other) for start in range(0, inputs, SIDE) for other in range(0, start + 1, SIDE))
