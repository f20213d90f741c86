"""Accept length, counted as engines count it: the only definition that draftconv compares.

    AL = 1 + accepted draft tokens / verify steps

pooled over requests, bonus token included. A step counts if it starts before the counted
end of the text, and then all its accepted tokens count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from draftconv.errors import UsageError


@dataclass(frozen=True, slots=True)
class Counts:
    """`histogram[j]` verify steps had exactly j accepted draft tokens, j = 0…K.

    Whole numbers where steps were counted; expected ones where drafts are drawn and only their odds are known.
    """

    histogram: tuple[float, ...]

    @classmethod
    def of(cls, accepted: Iterable[int], depth: int) -> Self:
        """Counts of steps that accepted so many of `depth` drafted tokens."""
        return cls.weighted(((count, 1) for count in accepted), depth)

    @classmethod
    def weighted(cls, accepted: Iterable[tuple[int, float]], depth: int) -> Self:
        """The same of steps that happen with some probability: (accepted tokens, probability)."""
        histogram: list[float] = [0] * (depth + 1)
        for count, weight in accepted:
            histogram[count] += weight
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
    def steps(self) -> float:
        """D: verify steps."""
        return sum(self.histogram)

    @property
    def accepted(self) -> float:
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

    def _some_steps(self) -> float:
        if not self.steps:
            raise UsageError("no verify step was counted", cure="give at least one request of two or more tokens")
        return self.steps


def walk(accepted: Sequence[int]) -> Iterator[int]:
    """Roots from which verify steps start, given what is accepted from every root."""
    root = 0
    while root < len(accepted):
        yield root
        root += accepted[root] + 1


def expected_steps(odds: Sequence[Sequence[float]], depth: int) -> Iterator[tuple[int, int, float]]:
    """(root, accepted tokens, probability) of every verify step that there may be.

    With c_j the product of the first j odds of a root, P(a) = c_a (1 - odds_a+1), P(K) = c_K; the first root is
    visited, and root t + a + 1 with v(t) P(a) more for every root t before it. Then AL = 1 + Σ v E[a] / Σ v.

    Args:
        odds: of each root, how likely its j-th draft is accepted where those before it were; `depth` or more of them.
    """
    visits = [1.0, *[0.0] * (len(odds) + depth)]
    for root, chances in enumerate(odds):
        chain = visits[root]
        for accepted, chance in enumerate(chances[:depth]):
            ends = chain * (1 - chance)
            chain *= chance
            if ends:
                visits[root + accepted + 1] += ends
                yield root, accepted, ends
        if chain:
            visits[root + depth + 1] += chain
            yield root, depth, chain
