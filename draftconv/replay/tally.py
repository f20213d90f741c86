"""What a replay adds up while it runs: records for the verdict, and what helps to find a loss.

Requests come one by one and are let go. What stays of each is its counts, one divergence per
position, and the places that cost most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftconv.reference.accept_length import walk
from draftconv.replay.replay import NOTHING, Acceptance
from draftconv.report.contexts import by_context
from draftconv.report.model import Diagnostics, Divergence, EveryPosition, Losses, Missed, Place
from draftconv.report.records import Record
from draftconv.report.statistics import Discordant, discordance
from draftconv.traces.request import TraceRequest
from draftconv.traces.trace import token_hash

CONTEXT = 48
"""Tokens before a loss that the report shows."""
STARTS = "places where a step of the reference starts"


def record(arm: str, request: TraceRequest, done: Acceptance) -> Record:
    """The line of records.jsonl for one request and arm."""
    text = request.tokens_N[: request.prompt + request.counted].tolist()
    accepted, first = done.accepted_R.tolist(), request.prompt + 1
    return Record(
        arm=arm,
        id=request.id,
        cluster=request.cluster,
        category=request.category,
        prompt=request.prompt,
        counted=request.counted,
        counts=done.counts,
        tokens=token_hash(text),
        contexts=by_context(((first + root, accepted[root], 1) for root in walk(accepted)), done.counts.depth),
    )


@dataclass(slots=True)
class Tally:
    """One candidate beside the reference, request after request; K is `depth`."""

    depth: int
    positions: int = field(default=0, init=False)
    agreed: int = field(default=0, init=False)
    discordant: list[Discordant] = field(default_factory=list, init=False)
    reached_2K: Tensor = field(init=False)
    nats: list[Tensor] = field(default_factory=list, init=False)
    sums: LossSum = field(default_factory=lambda: LossSum(STARTS), init=False)

    def __post_init__(self) -> None:
        self.reached_2K = torch.zeros(2, self.depth, dtype=torch.int64)

    def add(self, request: TraceRequest, reference: Acceptance, candidate: Acceptance) -> None:
        """Take in one request."""
        first_r, first_c = reference.drafts_RK[:, 0], candidate.drafts_RK[:, 0]
        right_r, right_c = reference.accepted_R > 0, candidate.accepted_R > 0
        self.positions += len(first_r)
        self.agreed += int((first_r == first_c).sum())
        self.discordant.append(
            Discordant(
                cluster=request.cluster,
                category=request.category,
                positions=len(first_r),
                lost=int((right_r & ~right_c).sum()),
                gained=int((right_c & ~right_r).sum()),
            )
        )
        accepted_2R = torch.stack((reference.accepted_R, candidate.accepted_R))
        self.reached_2K += (accepted_2R[:, :, None] > torch.arange(self.depth)).sum(1)
        if candidate.divergence_R is not None:
            self.nats.append(candidate.divergence_R)
        for place in places(request, reference, candidate, self.depth):
            self.sums.add(place)

    def diagnostics(self) -> Diagnostics:
        """Everything but the attribution."""
        if not self.positions:
            return Diagnostics()
        rates_2K = (self.reached_2K.double() / self.positions).tolist()
        return Diagnostics(
            agreement=self.agreed / self.positions,
            discordance=discordance(self.discordant),
            every_position=tuple(
                EveryPosition(j, reference, candidate)
                for j, (reference, candidate) in enumerate(zip(*rates_2K, strict=True), start=1)
            ),
            divergence=_divergence(self.nats),
        )

    def losses(self) -> Losses:
        """Where the candidate lost against the reference."""
        return self.sums.losses()


@dataclass(slots=True)
class LossSum:
    """`Losses` in the making, place by place; equal losses keep the order in which they came.

    Attributes:
        what: which places are looked at, in words.
        keep: how many of the costliest tokens and places are kept; memory is bounded by it and the vocabulary.
    """

    what: str
    keep: int = 12
    looked: int = field(default=0, init=False)
    worse: int = field(default=0, init=False)
    better: int = field(default=0, init=False)
    lost: int = field(default=0, init=False)
    gained: int = field(default=0, init=False)
    missed: dict[int, list[int]] = field(default_factory=dict, init=False)
    largest: list[Place] = field(default_factory=list, init=False)

    def add(self, place: Place) -> None:
        """One more place was looked at."""
        self.looked += 1
        if place.lost > 0:
            self.worse += 1
            self.lost += place.lost
            entry = self.missed.setdefault(place.target[place.candidate_accepted], [0, 0])
            entry[0] += 1
            entry[1] += place.lost
            self.largest.append(place)
            if len(self.largest) > 4 * self.keep:
                self.largest = _costliest(self.largest, self.keep)
        elif place.lost < 0:
            self.better += 1
            self.gained -= place.lost

    def losses(self) -> Losses:
        """What has come together so far."""
        tokens = sorted((Missed(token, *sums) for token, sums in self.missed.items()), key=lambda m: (-m.lost, m.token))
        return Losses(
            places=self.looked,
            what=self.what,
            worse=self.worse,
            better=self.better,
            lost=self.lost,
            gained=self.gained,
            tokens=tuple(tokens[: self.keep]),
            largest=tuple(_costliest(self.largest, self.keep)),
        )


def places(request: TraceRequest, reference: Acceptance, candidate: Acceptance, depth: int) -> Iterator[Place]:
    """The roots at which a step of the reference starts, and what both arms drafted there."""
    tokens = request.tokens_N.tolist()
    accepted_r, accepted_c = reference.accepted_R.tolist(), candidate.accepted_R.tolist()
    drafts_r, drafts_c = reference.drafts_RK.tolist(), candidate.drafts_RK.tolist()
    for root in reference.starts():
        at = request.prompt + 1 + root
        yield Place(
            id=request.id,
            position=at,
            context=tuple(tokens[max(0, at - CONTEXT) : at]),
            target=tuple(tokens[at : at + depth]),
            reference=_drafted(drafts_r[root]),
            candidate=_drafted(drafts_c[root]),
            reference_accepted=accepted_r[root],
            candidate_accepted=accepted_c[root],
        )


def _costliest(places: list[Place], keep: int) -> list[Place]:
    return sorted(places, key=lambda place: -place.lost)[:keep]


def _drafted(row: Sequence[int]) -> tuple[int, ...]:
    return tuple(token for token in row if token != NOTHING)


def _divergence(parts: Sequence[Tensor]) -> Divergence | None:
    """Mean and order statistics (nearest rank) of KL over positions, in nats; None where none was computed."""
    nats = torch.cat(list(parts)) if parts else torch.empty(0)
    if not len(nats):
        return None
    ordered = nats.double().sort().values
    median, p90, p99 = (float(ordered[math.ceil(share * len(nats)) - 1]) for share in (0.5, 0.9, 0.99))
    return Divergence(len(nats), float(ordered.mean()), median, p90, p99, float(ordered[-1]))
