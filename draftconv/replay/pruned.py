"""A drafter with a pruned head, replayed without being written, and the tokens that a drafter has accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import torch

from draftconv.drafter.drafter import Drafter
from draftconv.drafter.tensors import HEAD
from draftconv.engines.registry import DEFAULT
from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.replay.drafters import refuse_other_target
from draftconv.replay.lm_head import Head
from draftconv.replay.load_arm import LoadSettings, fed_by, load_arm
from draftconv.replay.replay import Arm, replay
from draftconv.report.statistics import Estimate, Pair, estimate
from draftconv.traces.halves import Halves
from draftconv.traces.trace import Trace, TraceEntry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The verify steps of one request."""

    id: str
    cluster: str
    category: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class AcceptedTokens:
    """The drafted tokens that were accepted on some requests.

    Attributes:
        tokens_V: how often each of the target's tokens was: int64 [V]. `requests`: in the trace's order.
    """

    tokens_V: NDArray[np.int64]
    requests: tuple[RequestCounts, ...]

    @property
    def accept_length(self) -> float:
        """Pooled over the requests.

        Raises:
            UsageError: none of them has a step.
        """
        return Counts.pooled(request.counts for request in self.requests).accept_length


def whole_arm(trace: Trace, drafter: Drafter, *, dtype: str, device: str) -> Arm:
    """A drafter as it is before it is pruned; quantized ones with activations as they come.

    Args:
        drafter: read for the trace's target.

    Raises:
        UsageError, BadCheckpoint, Refused, Undecided: it is of another target than the trace, or cannot be loaded.
    """
    name = drafter.checkpoint.name
    refuse_other_target(name, drafter, trace)
    trace.columns(fed_by(name, drafter))
    return load_arm(name, drafter, LoadSettings(cache(trace.table), DEFAULT, dtype, device), rounds=())


def pruned_arm(arm: Arm, tokens: Sequence[int], name: str = "") -> Arm:
    """A drafter whose head has the rows of some tokens only; everything else is shared with it.

    Args:
        tokens: the target's ids, ascending.

    Raises:
        UsageError: the drafter has no row for one of them.
    """
    weight_VH = Head.of(arm.model).weight_VH
    device = weight_VH.device
    ids = arm.model.to_target_ids(torch.arange(len(weight_VH), device=device)).tolist()
    row_of = {token: row for row, token in enumerate(ids)}
    if lacking := [token for token in tokens if token not in row_of]:
        raise UsageError(f"{arm.name} has no row for token {lacking[0]}", cure="keep tokens that it can draft")
    rows = torch.tensor([row_of[token] for token in tokens], device=device)
    offsets = torch.tensor(tokens, device=device) - torch.arange(len(tokens), device=device)
    facts = replace(arm.model.facts, draft_vocab=len(tokens), vocab_order="ascending")
    model = arm.model.changed(facts, {HEAD: weight_VH[rows], "d2t": offsets})
    return replace(arm, name=name or f"{arm.name} with {len(tokens)} rows", model=model)


def accepted_tokens(
    trace: Trace,
    entries: Sequence[TraceEntry],
    arm: Arm,
    *,
    depth: int,
    progress: Callable[[int], None] | None = None,
) -> AcceptedTokens:
    """What a drafter has accepted on requests of a trace, token by token, at the steps that an engine would run.

    Args:
        depth: K. `progress`: told the tokens of each request that is done.

    Raises:
        UsageError, BadCheckpoint: as `replay` and `Trace.read`.
    """
    boundaries = sorted(arm.boundaries)
    requests = (trace.read(entry, boundaries) for entry in entries)
    tokens_V, counted = torch.zeros(trace.about.vocab, dtype=torch.int64), []
    for request, (done,) in replay([arm], requests, boundaries, depth=depth, done=progress):
        counted.append(RequestCounts(request.id, request.cluster, request.category, done.counts))
        for root in done.starts():
            at = request.prompt + 1 + root
            accepted_J = request.tokens_N[at : at + int(done.accepted_R[root])]
            tokens_V += torch.bincount(accepted_J, minlength=len(tokens_V))
    return AcceptedTokens(tokens_V.numpy(), tuple(counted))


def compared(before: AcceptedTokens, after: AcceptedTokens) -> Estimate:
    """Accept lengths of a drafter before and after, on the same requests, and their ratio.

    Raises:
        UsageError: no request has a step.
    """
    pairs = (
        Pair(one.id, one.cluster, one.category, one.counts, other.counts)
        for one, other in zip(before.requests, after.requests, strict=True)
    )
    return estimate(pair for pair in pairs if pair.counted)


@dataclass(eq=False)
class HalvedReplay:
    """A drafter on both halves of a trace: what it has accepted in each, and how pruned heads fare in the second.

    Attributes:
        depth: K. `progress`: told the tokens that were replayed so far, and all that a choice and its judgement take.
    """

    trace: Trace
    arm: Arm
    halves: Halves
    depth: int
    progress: Callable[[int, int], None] | None = None
    done: int = field(default=0, init=False)

    @cached_property
    def choosing(self) -> AcceptedTokens:
        """In the half that chooses."""
        return self._accepted(self.halves.choosing, self.arm)

    @cached_property
    def judging(self) -> AcceptedTokens:
        """In the half that chooses nothing."""
        return self._accepted(self.halves.judging, self.arm)

    def pruned(self, tokens: Sequence[int]) -> Estimate:
        """Accept lengths of the drafter whole and with the rows of these tokens, in the half that chooses nothing.

        Raises:
            UsageError: as `pruned_arm` and `compared`.
        """
        return compared(self.judging, self._accepted(self.halves.judging, pruned_arm(self.arm, tokens)))

    def _accepted(self, entries: Sequence[TraceEntry], arm: Arm) -> AcceptedTokens:
        return accepted_tokens(self.trace, entries, arm, depth=self.depth, progress=self._tell)

    def _tell(self, tokens: int) -> None:
        self.done += tokens
        if self.progress is not None:
            every = (*self.halves.choosing, *self.halves.judging, *self.halves.judging)
            total = sum(entry.prompt + entry.counted + self.trace.about.depth for entry in every)
            self.progress(min(self.done, total), total)
