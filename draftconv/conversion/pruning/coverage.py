"""What a choice of tokens covers of text that did not choose it, and whether more text would have helped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.conversion.pruning.choice import WeightedCounts, choose, scores

if TYPE_CHECKING:
    from draftconv.conversion.pruning.choice import Counts
    from draftconv.traces.token_counts import DomainCounts

TOKENS_PER_ROW = 30
"""Tokens of text that every row asks for: below, held-out coverage still rises a percent or more when text doubles."""

SHARES = (1, 2, 4, 8)
"""Eighths of the text that the learning curve chooses from."""


@dataclass(frozen=True, slots=True)
class DomainCoverage:
    """What a choice covers of one domain's held-out text.

    Attributes:
        tokens: that chose. `held`: held-out tokens. `covered`: the share of those that can be drafted.
    """

    name: str
    weight: float
    tokens: int
    held: int
    covered: float


@dataclass(frozen=True, slots=True)
class LearningPoint:
    """A choice from a part of the text: `tokens` that chose, and the share of held-out text that it lacks."""

    tokens: int
    missing: float


Choose = Callable[[Sequence[WeightedCounts]], tuple[int, ...]]
"""The tokens that are kept, chosen by some counts."""


def chooser(rows: Sequence[int], forced: Collection[int], vocab: int, also: Sequence[WeightedCounts] = ()) -> Choose:
    """Chooses `vocab` of `rows` by any counts, and by `also` beside them."""
    return lambda kinds: choose(scores([*kinds, *also]), rows, forced, vocab)


def missing_share(counts_V: Counts, kept: Sequence[int]) -> float:
    """The share of counted tokens that are not among `kept`; 0 where none are counted."""
    whole = int(counts_V.sum())
    return 1 - int(counts_V[list(kept)].sum()) / whole if whole else 0.0


def coverage_of(domains: Sequence[DomainCounts], kept: Sequence[int]) -> tuple[DomainCoverage, ...]:
    """Held-out coverage of every domain."""
    return tuple(
        DomainCoverage(d.name, d.weight, d.tokens, d.held_tokens, 1 - missing_share(d.held_V, kept)) for d in domains
    )


def mixed_missing(domains: Sequence[DomainCounts], kept: Sequence[int]) -> float:
    """The share of held-out text that `kept` lacks, of all domains by their weights."""
    whole = sum(domain.weight for domain in domains)
    return sum(domain.weight * missing_share(domain.held_V, kept) for domain in domains) / whole


def by_weight(domains: Sequence[DomainCounts], eighths: int = 8) -> list[WeightedCounts]:
    """The text that chooses, or the first parts of it."""
    return [WeightedCounts(domain.parts_PV[:eighths].sum(0), domain.weight) for domain in domains]


def learning_curve(domains: Sequence[DomainCounts], chosen: Choose) -> Iterator[LearningPoint]:
    """What choices from an eighth, a quarter, half and all of the text lack of the held-out text."""
    for eighths in SHARES:
        part = by_weight(domains, eighths)
        if any(kind.counts_V.any() for kind in part):
            tokens = sum(int(kind.counts_V.sum()) for kind in part)
            yield LearningPoint(tokens, mixed_missing(domains, chosen(part)))


def effective_tokens(domains: Sequence[DomainCounts]) -> int:
    """Tokens of an even mixture that would tell as much: a domain that weighs much and has little text limits it.

    The variance of a share that is mixed of w_d · c_d / T_d goes with Σ w_d² / T_d, that of T tokens with 1 / T.
    """
    whole = sum(domain.weight for domain in domains)
    return int(whole**2 / sum(domain.weight**2 / max(1, domain.tokens) for domain in domains))
