"""Accept length, counted as engines count it: the only definition that draftconv compares.

    AL = 1 + accepted draft tokens / verify steps

pooled over requests, bonus token included. A step counts if it starts before the counted
end of the text, and then all its accepted tokens count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from draftconv.errors import UsageError


@dataclass(frozen=True, slots=True)
class Counts:
    """`histogram[j]` verify steps had exactly j accepted draft tokens, j = 0…K."""

    histogram: tuple[int, ...]

    @classmethod
    def of(cls, accepted: Iterable[int], depth: int) -> Self:
        """Counts of steps that accepted so many of `depth` drafted tokens."""
        histogram = [0] * (depth + 1)
        for count in accepted:
            histogram[count] += 1
        return cls(tuple(histogram))

    @classmethod
    def pooled(cls, parts: Iterable[Counts]) -> Self:
        """The sum over requests.

        Raises:
            UsageError: no request, or not all of one depth.
        """
        histograms = [part.histogram for part in parts]
        if len({len(histogram) for histogram in histograms}) != 1:
            raise UsageError(
                "counts of different depths cannot be pooled" if histograms else "there are no counts to pool",
                cure="give at least one request, all drafted to the same depth",
            )
        return cls(tuple(map(sum, zip(*histograms, strict=True))))

    @property
    def depth(self) -> int:
        """K: drafted tokens per step."""
        return len(self.histogram) - 1

    @property
    def steps(self) -> int:
        """D: verify steps."""
        return sum(self.histogram)

    @property
    def accepted(self) -> int:
        """A: accepted draft tokens."""
        return sum(j * count for j, count in enumerate(self.histogram))

    @property
    def accept_length(self) -> float:
        """1 + A / D.

        Raises:
            UsageError: no step was counted.
        """
        return 1 + self.accepted / self._some_steps()

    def reached(self, j: int) -> float:
        """p_j: the share of steps that accepted at least j tokens."""
        return sum(self.histogram[j:]) / self._some_steps()

    def conditional(self, j: int) -> float:
        """c_j = p_j / p_{j-1}: how often token j is accepted where j - 1 were; NaN where none were."""
        before = sum(self.histogram[j - 1 :])
        return sum(self.histogram[j:]) / before if before else float("nan")

    def _some_steps(self) -> int:
        if not self.steps:
            raise UsageError("no verify step was counted", cure="give at least one request of two or more tokens")
        return self.steps
