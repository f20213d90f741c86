"""What drafters would have been accepted on a text that the target has already written.

Under greedy verification the text is the target's own, whatever a drafter proposes. So
every verify step that an engine could start is replayed at once: row t of a request, with
feature t and token t + 1, is the root of a chain of K drafts for the tokens from t + 2 on
(the attention pattern of training-time test, `draftconv.reference.attention`). A chain is fed
the target's tokens instead of its own drafts: as long as it is accepted they are the same,
and after that nothing counts. Walking from root to root as an engine does, t → t + accepted
+ 1, gives the engine's own counts.

Shape suffixes as in `draftconv.reference`, and R for roots: the rows of a batch that count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.reference.accept_length import Counts, walk
from draftconv.reference.cache import Cache
from draftconv.reference.drafter import DrafterModel
from draftconv.replay.batches import (
    BatchText,
    Columns,
    RootBlock,
    batches,
    blocks,
    columns_of,
    padded_states,
    refuse_clipped,
)
from draftconv.replay.lm_head import NOT_FINITE, Head, best_tokens, compared_tokens
from draftconv.replay.not_finite import logits_not_finite
from draftconv.traces.request import TraceRequest
from draftconv.traces.states import chosen

ROWS_AT_ONCE = 2048
"""Rows in a forward pass of one drafter: bounds memory, changes no count."""

NOTHING = -1
"""In place of a draft that was not looked at, because the chain had been rejected."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A drafter to replay, and which boundaries of the target feed it."""

    name: str
    model: DrafterModel
    boundaries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one arm did on one request.

    Attributes:
        accepted_R: int8, tokens accepted from each root; root r is position prompt - 1 + r.
        drafts_RK: int32 target ids drafted from each root, `NOTHING` after the first rejected one.
        counts: of the verify steps that an engine would have run.
        divergence_R: KL(first arm ‖ this arm) of the first draft's distribution in nats, float32;
            None where it was not asked for, and where the heads draft different tokens.
    """

    accepted_R: Tensor
    drafts_RK: Tensor
    counts: Counts
    divergence_R: Tensor | None = None

    def starts(self) -> list[int]:
        """The roots at which an engine would have started a verify step."""
        return list(walk(self.accepted_R.tolist()))


@torch.no_grad()
def replay(
    arms: Sequence[Arm],
    requests: Iterable[TraceRequest],
    boundaries: Sequence[int],
    *,
    depth: int,
    compared: int = 0,
    rows: int = ROWS_AT_ONCE,
    whole: bool = False,
    done: Callable[[int], None] | None = None,
) -> Iterator[tuple[TraceRequest, tuple[Acceptance, ...]]]:
    """Replay every arm on every request; the target's side is loaded once for all of them.

    Args:
        arms: all on one device, in one dtype.
        requests: their states are moved to the arms' device and dtype.
        boundaries: ascending boundaries of the requests' state columns.
        depth: K, drafted tokens per verify step.
        compared: how many arms after the first have their divergence from it measured.
        rows: most rows of a forward pass; also how many rows of requests are batched.
        whole: compute rows and chains too that decide nothing, as an engine does, for whoever watches the modules.
        done: told the tokens of each request that is finished.

    Yields:
        A request and what every arm did on it, in the order of `requests`.

    Raises:
        UsageError: the requests lack a boundary, or keep too few tokens for `depth`.
        BadCheckpoint: the states of a request, or a drafter's logits, are not finite.
    """
    columns = [columns_of(arm.name, arm.boundaries, boundaries) for arm in arms]
    for batch in batches(requests, rows):
        for request in batch:
            refuse_clipped(request, depth)
        acceptances = _replay_batch(arms, columns, batch, depth, compared, rows, whole=whole)
        for request, of_arms in zip(batch, acceptances, strict=True):
            if done:
                done(len(request.tokens_N))
            yield request, of_arms


def _replay_batch(
    arms: Sequence[Arm],
    columns: Sequence[list[int]],
    batch: Sequence[TraceRequest],
    depth: int,
    compared: int,
    rows: int,
    *,
    whole: bool,
) -> list[tuple[Acceptance, ...]]:
    weight = arms[0].model.fc.weight
    text = BatchText.of(batch, depth, weight.device)
    runs = [_ArmRun(arm, batch, text, depth, whole=whole) for arm in arms]
    for first, last in blocks(text.width, min(request.prompt for request in batch) - 1, max(1, rows // len(batch))):
        block = text.block(first, last)
        states_BTAW = padded_states(batch, first, last, weight.device, weight.dtype)
        for run, arm_columns in zip(runs, columns, strict=True):
            run.begin(block, chosen(states_BTAW, arm_columns))
        if len(block.row_R):
            _first_drafts(runs[0], runs[1:], compared, block)
            for run in runs:
                run.go_on(block)
    return [tuple(run.acceptance(b) for run in runs) for b in range(len(batch))]


class _ArmRun:
    """One arm in the middle of one batch."""

    def __init__(self, arm: Arm, batch: Sequence[TraceRequest], text: BatchText, depth: int, *, whole: bool) -> None:
        self.batch = batch
        self.arm, self.model, self.depth, self.whole = arm, arm.model, depth, whole
        self.cache: Cache = arm.model.cache(text.width)
        self.head = Head.of(arm.model)
        device, cells = text.token_BN.device, text.root_BT.shape
        self.z_BTH = torch.empty(0, device=device)
        self.accepted_BT = torch.zeros(cells, dtype=torch.int8, device=device)
        self.drafts_BTK = torch.full((*cells, depth), NOTHING, dtype=torch.int32, device=device)
        self.divergence_BT: Tensor | None = None
        self.root_BT = text.root_BT

    def begin(self, block: RootBlock, states_BTAW: Tensor) -> None:
        """Step 0: the block's rows join the context."""
        fused_BTH, token_BT = self.model.fuse(states_BTAW), block.token_BTK[..., 0]
        if self.whole or len(block.row_R):
            self.z_BTH = self.model.step(fused_BTH, token_BT, self.cache)
        else:
            self.model.remember(fused_BTH, token_BT, self.cache)

    def normed(self, row_R: Tensor) -> Tensor:
        """What the head reads at some rows: [R, H]."""
        normed_RH: Tensor = self.model.norm(self.z_BTH.flatten(0, 1)[row_R])
        return normed_RH

    def go_on(self, block: RootBlock) -> None:
        """Steps 1 … K - 1, for the chains that have been accepted so far."""
        accepted, drafts = self.accepted_BT.view(-1), self.drafts_BTK.view(-1, self.depth)
        alive = accepted[block.index_R].nonzero()[:, 0]
        place_R, token_BTK = block.row_R[alive], block.token_BTK
        for k in range(1, self.depth):
            if not len(alive):
                return
            if not self.whole:
                columns = Columns.of(place_R, *self.z_BTH.shape[:2])
                self.cache.pick(columns.row_BC)
                self.z_BTH, token_BTK, place_R = columns.picked(self.z_BTH), columns.picked(token_BTK), columns.place_R
            self.z_BTH = self.model.step(self.model.feedback(self.z_BTH), token_BTK[..., k], self.cache, k)
            drafted = self.target_ids(best_tokens(self.head, self.normed(place_R)), block.index_R[alive])
            drafts[block.index_R[alive], k] = drafted.to(torch.int32)
            right = drafted == block.wanted_RK[alive, k]
            alive, place_R = alive[right], place_R[right]
            accepted[block.index_R[alive]] = k + 1

    def record_first(self, block: RootBlock, draft_R: Tensor) -> None:
        """What the first draft of every root was."""
        drafted_R = self.target_ids(draft_R, block.index_R)
        self.drafts_BTK.view(-1, self.depth)[block.index_R, 0] = drafted_R.to(torch.int32)
        self.accepted_BT.view(-1)[block.index_R] = (drafted_R == block.wanted_RK[:, 0]).to(torch.int8)

    def record_divergence(self, block: RootBlock, divergence_R: Tensor) -> None:
        if self.divergence_BT is None:
            self.divergence_BT = torch.zeros(self.accepted_BT.shape, dtype=torch.float32, device=divergence_R.device)
        self.divergence_BT.view(-1)[block.index_R] = divergence_R

    def target_ids(self, draft_R: Tensor, index_R: Tensor) -> Tensor:
        """What drafts at some places of the batch are called by the target.

        Raises:
            BadCheckpoint: a draft has no logits; it says whether the trace is to blame.
        """
        bad_R = draft_R == NOT_FINITE
        if bool(bad_R.any()):
            raise logits_not_finite(self.arm.name, self.batch[int(index_R[bad_R][0]) // self.root_BT.shape[1]])
        return self.model.to_target_ids(draft_R)

    def acceptance(self, b: int) -> Acceptance:
        """What came of the batch's request `b`."""
        root_T = self.root_BT[b]
        accepted_R = self.accepted_BT[b, root_T].cpu()
        accepted = accepted_R.tolist()
        return Acceptance(
            accepted_R,
            self.drafts_BTK[b, root_T].cpu(),
            Counts.of((accepted[root] for root in walk(accepted)), self.depth),
            None if self.divergence_BT is None else self.divergence_BT[b, root_T].cpu(),
        )


def _first_drafts(reference: _ArmRun, others: Sequence[_ArmRun], compared: int, block: RootBlock) -> None:
    """The first draft of every root by every arm, and how far the first `compared` of the others are from it."""
    alike = [run for run in others[:compared] if run.head.drafts_like(reference.head)]
    heads = [(run.head, run.normed(block.row_R)) for run in alike]
    draft_R, drafted = compared_tokens(reference.head, reference.normed(block.row_R), heads)
    reference.record_first(block, draft_R)
    for run, (draft_R, divergence_R) in zip(alike, drafted, strict=True):
        run.record_first(block, draft_R)
        run.record_divergence(block, divergence_R)
    for run in others:
        if run not in alike:
            run.record_first(block, best_tokens(run.head, run.normed(block.row_R)))
