"""A pruning that is decided: which rows stay, what they cover, and what that is likely to cost."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from draftconv.checkpoint import show_some
from draftconv.conversion.pruning.choice import WeightedCounts
from draftconv.conversion.pruning.coverage import (
    TOKENS_PER_ROW,
    DomainCoverage,
    LearningPoint,
    by_weight,
    chooser,
    coverage_of,
    effective_tokens,
    learning_curve,
    missing_share,
    mixed_missing,
)
from draftconv.conversion.pruning.head_rows import BLOCK, HeadRows
from draftconv.conversion.pruning.law import PredictedLoss, predicted_loss
from draftconv.conversion.pruning.tokens import KeptTokens
from draftconv.errors import Refused

if TYPE_CHECKING:
    from draftconv.conversion.pruning.choice import Counts
    from draftconv.traces.token_counts import DomainCounts

LADDER = (1, 2, 4, 8, 16)
"""Quarters of the rows asked for that losses are predicted of."""

FOREIGN = 0.05
"""How much less of the trace's accepted tokens than of the text may be covered before it is told."""


@dataclass(frozen=True, slots=True)
class AcceptedOfTrace:
    """Tokens that the whole drafter had accepted: those that choose, those that judge, and its accept length there."""

    choosing_V: Counts
    judging_V: Counts
    accept_length: float
    digest: str


@dataclass(frozen=True, slots=True)
class LadderStep:
    """A number of rows, what the head would take, what it would lack, and the loss that the law predicts."""

    vocab: int
    nbytes: int
    missing: float
    loss: PredictedLoss


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """A pruning that is decided.

    Attributes:
        forced: how many of the tokens stay whatever the text says.
        curve: held-out text that is missing when chosen from parts of the text.
        ladder: by rows, ascending; the rows that were asked for are among them.
        enough: tokens that the rows ask for. `effective`: that the text is worth.
        missing: the share of accepted tokens that cannot be drafted any more; of held-out text without a trace.
        accept_length: of the whole drafter; None without a trace. `depth`: K.
        accepted: tokens of the trace that it had accepted, in the half that judges.
    """

    vocab: int
    head: HeadRows
    kept: KeptTokens
    forced: int
    coverage: tuple[DomainCoverage, ...]
    curve: tuple[LearningPoint, ...]
    ladder: tuple[LadderStep, ...]
    enough: int
    effective: int
    missing: float
    accept_length: float | None
    depth: int
    notes: tuple[str, ...] = ()
    accepted: int = 0

    @property
    def loss(self) -> PredictedLoss:
        """What the law predicts; without a trace of a drafter that is always right, which nothing exceeds."""
        return predicted_loss(self.missing, self.accept_length or self.depth + 1)

    def refuse_little_text(self) -> None:
        """Refuse a choice from too little text.

        Raises:
            Refused: each row asks for 30 tokens.
        """
        if self.effective >= self.enough:
            return
        short = min(self.coverage, key=lambda domain: domain.tokens / domain.weight)
        which = f"; of {short.name} there are {short.tokens}" if len(self.coverage) > 1 else ""
        lacking = f"{100 * self.missing:.1f} % of unseen text is missing with these"
        raise Refused(
            f"{self.effective} tokens of text are too few to choose {self.vocab} rows by{which}",
            why=f"each row asks for {TOKENS_PER_ROW}, {self.enough} in all; {lacking}",
            cure="give more text of what will be asked, fewer rows, or --force",
        )


def plan_pruning(
    head: HeadRows,
    domains: Sequence[DomainCounts],
    forced: Collection[int],
    vocab: int,
    *,
    depth: int,
    step: int = BLOCK,
    accepted: AcceptedOfTrace | None = None,
    notes: Sequence[str] = (),
) -> PruningPlan:
    """Choose the rows, and tell what is to be expected of them; nothing is read or written.

    Args:
        forced: tokens that stay. `vocab`: rows that stay. `step`: what rows are a multiple of.
        accepted: what a trace tells. `notes`: what is known already of the tokens that stay.

    Raises:
        UsageError: there are not so many rows, or more tokens that have to stay.
    """
    also = [] if accepted is None else [WeightedCounts(accepted.choosing_V, _trace_weight(domains, accepted))]
    whole = by_weight(domains)

    def chosen(rows: int) -> tuple[int, ...]:
        return chooser(head.ids, forced, rows, also)(whole)

    def missing(kept: Sequence[int]) -> float:
        return mixed_missing(domains, kept) if accepted is None else missing_share(accepted.judging_V, kept)

    length = accepted.accept_length if accepted else depth + 1
    kept = chosen(vocab)
    stay = {*forced} & {*head.ids}
    ladder = []
    for rows in _ladder(vocab, max(len(stay), 1), len(head.ids), step):
        lacks = missing(kept if rows == vocab else chosen(rows))
        ladder.append(LadderStep(rows, round(rows * head.row_bytes), lacks, predicted_loss(lacks, length)))
    found = coverage_of(domains, kept)
    return PruningPlan(
        vocab=vocab,
        head=head,
        kept=KeptTokens(kept, _record(head, domains, found, len(stay), accepted)),
        forced=len(stay),
        coverage=found,
        curve=tuple(learning_curve(domains, chooser(head.ids, forced, vocab, also))),
        ladder=tuple(ladder),
        enough=TOKENS_PER_ROW * vocab,
        effective=effective_tokens(domains),
        missing=missing(kept),
        accept_length=accepted.accept_length if accepted else None,
        depth=depth,
        notes=(*notes, *_rowless(forced, stay), *_notes(domains, found, accepted, missing(kept))),
        accepted=int(accepted.judging_V.sum()) if accepted else 0,
    )


def _trace_weight(domains: Sequence[DomainCounts], accepted: AcceptedOfTrace) -> float:
    """A token of the trace weighs what a token of text does on average."""
    text = sum(domain.tokens for domain in domains)
    return sum(domain.weight for domain in domains) * int(accepted.choosing_V.sum()) / text


def _ladder(vocab: int, least: int, most: int, step: int) -> list[int]:
    """Numbers of rows around the one that was asked for, between what has to stay and what there is."""
    rungs = {vocab * quarters // 4 // step * step for quarters in LADDER}
    return sorted({vocab, *(rows for rows in rungs if least <= rows < most and rows > 0)})


def _rowless(forced: Collection[int], stay: Collection[int]) -> Iterator[str]:
    if lacking := sorted({*forced} - {*stay}):
        yield f"{len(lacking)} of the tokens that should stay have no row in this head: {show_some(lacking)}"


def _notes(
    domains: Sequence[DomainCounts], found: Sequence[DomainCoverage], accepted: AcceptedOfTrace | None, missing: float
) -> Iterator[str]:
    for domain in domains:
        if domain.silent:
            yield f"{domain.name}: {domain.silent} conversations without an answer are not counted"
        yield from (f"{domain.name}: {place} was not read to its end" for place in domain.cut)
    text = sum(d.weight * (1 - d.covered) for d in found) / sum(d.weight for d in found)
    if accepted is not None and missing > text + FOREIGN:
        yield (
            f"the text is not what the target writes: {100 * missing:.1f} % of the trace's accepted tokens cannot be "
            f"drafted any more, {100 * text:.1f} % of the text's; is it of another language or kind?"
        )


def _record(
    head: HeadRows,
    domains: Sequence[DomainCounts],
    found: Sequence[DomainCoverage],
    forced: int,
    accepted: AcceptedOfTrace | None,
) -> dict[str, object]:
    """What draftconv.json tells: no word of it is needed to make the output again."""
    return {
        "rows": len(head.ids),
        "forced": forced,
        "domains": [
            asdict(coverage)
            | {"places": list(domain.places), "conversations": domain.conversations, "counts": _digest(domain)}
            for domain, coverage in zip(domains, found, strict=True)
        ],
        "trace": f"sha256:{accepted.digest}" if accepted else None,
    }


def _digest(domain: DomainCounts) -> str:
    """SHA-256 of the counts as little-endian int64, in hex."""
    return hashlib.sha256(domain.choosing_V.astype("<i8").tobytes()).hexdigest()
