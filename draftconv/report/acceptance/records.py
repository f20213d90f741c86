"""What one drafter would have been accepted from every position of a request: all that its figures follow from.

The walk from step to step depends on K, what is accepted from a position does not, but for being cut at K. So one
replay at the largest K tells the counts of every smaller one. Where drafts are drawn, odds take the place of what was
accepted, and expected steps that of counted ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draftconv.reference.accept_length import Counts, expected_steps, walk
from draftconv.report.contexts import by_context
from draftconv.report.records import Record


@dataclass(frozen=True, slots=True)
class AcceptanceRecord:
    """One drafter on one request.

    Attributes:
        arm: name of the drafter. `id`: of the request. `cluster`: its prompt, with all its turns.
        prompt: prompt tokens. `counted`: generated tokens that count.
        accepted: tokens accepted from each root, cut at the largest K; root r is known up to token prompt + r. Empty
            where drafts are drawn.
        odds: of drawn drafts, from each root: how likely the j-th is accepted where those before it were, up to the
            first that cannot be.
        unmapped: [i, token id] of the target's tokens that the drafter's vocabulary map lacks, ascending; i counts from
            the first token that is ever drafted, at position prompt + 1.
        tokens: SHA-256 of prompt and text as token ids, little-endian int64.
    """

    arm: str
    id: str
    cluster: str
    category: str
    language: str
    prompt: int
    counted: int
    accepted: tuple[int, ...]
    unmapped: tuple[tuple[int, int], ...]
    tokens: str
    odds: tuple[tuple[float, ...], ...] = ()

    @property
    def roots(self) -> int:
        """Positions from which a verify step could start."""
        return max(0, self.counted - 1)

    def steps(self, depth: int) -> Iterator[tuple[int, int, float]]:
        """(root, accepted tokens, probability) of every verify step of K = `depth`; 1 if it was counted."""
        if self.odds:
            return expected_steps([(*chances, *[0.0] * (depth - len(chances))) for chances in self.odds], depth)
        accepted = [min(count, depth) for count in self.accepted]
        return ((root, accepted[root], 1) for root in walk(accepted))

    def counts(self, depth: int) -> Counts:
        """Its verify steps with `depth` drafted tokens, which is at most the depth that it was replayed at."""
        return Counts.weighted(((accepted, weight) for _, accepted, weight in self.steps(depth)), depth)

    def record(self, depth: int) -> Record:
        """Its counts with `depth` drafted tokens, as a comparison takes them."""
        return Record(
            arm=self.arm,
            id=self.id,
            cluster=self.cluster,
            category=self.category,
            prompt=self.prompt,
            counted=self.counted,
            counts=self.counts(depth),
            tokens=self.tokens,
            contexts=by_context(
                ((self.known(root), accepted, weight) for root, accepted, weight in self.steps(depth)), depth
            ),
        )

    def known(self, root: int) -> int:
        """Tokens of context that a step from this root starts with."""
        return self.prompt + 1 + root

    def perfect_steps(self, depth: int) -> Iterator[tuple[int, int, int | None]]:
        """Steps of a drafter that is right wherever its map allows: (root, accepted, the token that ended it).

        The token is None where nothing but `depth` ended the step.
        """
        missing = dict(self.unmapped)
        accepted = [
            next((i - root for i in range(root, root + depth) if i in missing), depth) for root in range(self.roots)
        ]
        for root in walk(accepted):
            yield root, accepted[root], missing.get(root + accepted[root]) if accepted[root] < depth else None

    def undraftable(self) -> int:
        """How many of the counted tokens after the first its map lacks."""
        return sum(i < self.roots for i, _ in self.unmapped)
