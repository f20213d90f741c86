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

from draftconv.errors import BadCheckpoint, UsageError
from draftconv.reference.accept_length import Counts
from draftconv.reference.attention import Cache
from draftconv.reference.drafter import DrafterModel
from draftconv.replay.lm_head import NOT_FINITE, Head, best_tokens, compared_tokens
from draftconv.traces.request import TraceRequest

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


def walk(accepted: Sequence[int]) -> Iterator[int]:
    """Roots from which verify steps start, given what is accepted from every root."""
    root = 0
    while root < len(accepted):
        yield root
        root += accepted[root] + 1


def roots(request: TraceRequest) -> int:
    """R: verify steps start while fewer than prompt + counted tokens are known; the first knows prompt + 1."""
    return max(0, request.counted - 1)


@torch.no_grad()
def replay(
    arms: Sequence[Arm],
    requests: Iterable[TraceRequest],
    boundaries: Sequence[int],
    *,
    depth: int,
    compared: int = 0,
    rows: int = ROWS_AT_ONCE,
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
        done: told the tokens of each request that is finished.

    Yields:
        A request and what every arm did on it, in the order of `requests`.

    Raises:
        UsageError: the requests lack a boundary, or keep too few tokens for `depth`.
        BadCheckpoint: a drafter's logits are not finite.
    """
    columns = [_columns(arm, boundaries) for arm in arms]
    for batch in _batches(requests, rows):
        for request in batch:
            _refuse_clipped(request, depth)
        acceptances = _replay_batch(arms, columns, batch, depth, compared, rows)
        for request, of_arms in zip(batch, acceptances, strict=True):
            if done:
                done(len(request.tokens_N))
            yield request, of_arms


def _columns(arm: Arm, boundaries: Sequence[int]) -> list[int]:
    missing = [b for b in arm.boundaries if b not in boundaries]
    if missing:
        raise UsageError(
            f"{arm.name} reads boundaries {list(arm.boundaries)}, the trace holds {list(boundaries)}",
            why="its fc would be fed states that it was not trained on",
            cure=f"make the trace with --boundaries {','.join(map(str, sorted({*boundaries, *arm.boundaries})))}",
        )
    return [boundaries.index(b) for b in arm.boundaries]


def _refuse_clipped(request: TraceRequest, depth: int) -> None:
    beyond = len(request.tokens_N) - request.prompt - request.counted
    if roots(request) and beyond < depth - 1:
        raise UsageError(
            f"request {request.id} keeps {beyond} tokens beyond its end, drafts of {depth} need {depth - 1}",
            why="its last steps would be clipped, which lowers the accept length",
            cure=f"make the trace with --num-speculative-tokens {depth}, or replay with "
            f"--num-speculative-tokens {beyond + 1}",
        )


def _batches(requests: Iterable[TraceRequest], rows: int) -> Iterator[list[TraceRequest]]:
    """Neighbouring requests that are at most `rows` rows together once they are padded alike."""
    batch: list[TraceRequest] = []
    longest = 0
    for request in requests:
        longest = max(longest, _context(request))
        if batch and longest * (len(batch) + 1) > rows:
            yield batch
            batch, longest = [], _context(request)
        batch.append(request)
    if batch:
        yield batch


def _context(request: TraceRequest) -> int:
    """Rows that some verify step reads."""
    return request.prompt - 1 + roots(request)


def _replay_batch(
    arms: Sequence[Arm],
    columns: Sequence[list[int]],
    batch: Sequence[TraceRequest],
    depth: int,
    compared: int,
    rows: int,
) -> list[tuple[Acceptance, ...]]:
    weight = arms[0].model.fc.weight
    text = _Text.of(batch, depth, weight.device)
    states_BTAW = _padded_states(batch, text.width, weight.device, weight.dtype)
    runs = [_ArmRun(arm, text, depth) for arm in arms]
    for first, last in _blocks(text.width, min(request.prompt for request in batch) - 1, max(1, rows // len(batch))):
        block = text.block(first, last)
        for run, arm_columns in zip(runs, columns, strict=True):
            run.begin(block, states_BTAW[:, first:last, arm_columns])
        if len(block.row_R):
            _first_drafts(runs[0], runs[1:], compared, block)
            for run in runs:
                run.go_on(block)
    return [tuple(run.acceptance(b) for run in runs) for b in range(len(batch))]


def _blocks(width: int, rootless: int, rows: int) -> Iterator[tuple[int, int]]:
    """Runs of at most `rows` rows, none of them across the place where roots begin: before it, one step is enough."""
    for begin, end in ((0, rootless), (rootless, width)):
        for first in range(begin, end, rows):
            yield first, min(first + rows, end)


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows [first, last) of a batch.

    `token_BTK[:, :, k]` is what step k is fed, token t + 1 + k; `row_R` are the roots among the
    block's rows (flat, request by request), `index_R` their places in all roots of the batch.
    """

    token_BTK: Tensor
    wanted_RK: Tensor
    row_R: Tensor
    index_R: Tensor


@dataclass(frozen=True, slots=True)
class _Text:
    """The tokens of a batch, padded on the right; padding is never seen by a root, because attention is causal."""

    token_BN: Tensor
    root_BT: Tensor
    depth: int

    @classmethod
    def of(cls, batch: Sequence[TraceRequest], depth: int, device: torch.device) -> _Text:
        width = max(_context(request) for request in batch)
        token_BN = torch.zeros(len(batch), width + 1 + depth, dtype=torch.int64)
        root_BT = torch.zeros(len(batch), width, dtype=torch.bool)
        for b, request in enumerate(batch):
            known = request.tokens_N[: token_BN.shape[1]]
            token_BN[b, : len(known)] = known
            root_BT[b, request.prompt - 1 : _context(request)] = True
        return cls(token_BN.to(device), root_BT.to(device), depth)

    @property
    def width(self) -> int:
        return self.root_BT.shape[1]

    def block(self, first: int, last: int) -> _Block:
        ahead_BTK = torch.stack([self.token_BN[:, first + k : last + k] for k in range(1, self.depth + 2)], dim=-1)
        row_R = self.root_BT[:, first:last].flatten().nonzero()[:, 0]
        flat_BT = torch.arange(self.root_BT.numel(), device=row_R.device).view_as(self.root_BT)
        return _Block(
            token_BTK=ahead_BTK[..., :-1],
            wanted_RK=ahead_BTK[..., 1:].flatten(0, 1)[row_R],
            row_R=row_R,
            index_R=flat_BT[:, first:last].flatten()[row_R],
        )


def _padded_states(batch: Sequence[TraceRequest], width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    shape = (len(batch), width, *batch[0].states_TAW.shape[1:])
    states_BTAW = torch.zeros(shape, device=device, dtype=dtype)
    for b, request in enumerate(batch):
        rows = _context(request)
        states_BTAW[b, :rows] = request.states_TAW[:rows]
    return states_BTAW


class _ArmRun:
    """One arm in the middle of one batch."""

    def __init__(self, arm: Arm, text: _Text, depth: int) -> None:
        self.arm, self.model, self.depth = arm, arm.model, depth
        self.cache: Cache = arm.model.cache()
        self.head = Head.of(arm.model)
        device, cells = text.token_BN.device, text.root_BT.shape
        self.z_BTH = torch.empty(0, device=device)
        self.accepted_BT = torch.zeros(cells, dtype=torch.int8, device=device)
        self.drafts_BTK = torch.full((*cells, depth), NOTHING, dtype=torch.int32, device=device)
        self.divergence_BT: Tensor | None = None
        self.root_BT = text.root_BT

    def begin(self, block: _Block, states_BTAW: Tensor) -> None:
        """Step 0: the block's rows join the context."""
        self.z_BTH = self.model.step(self.model.fuse(states_BTAW), block.token_BTK[..., 0], self.cache)

    def normed(self, row_R: Tensor) -> Tensor:
        """What the head reads at some rows: [R, H]."""
        normed_RH: Tensor = self.model.norm(self.z_BTH.flatten(0, 1)[row_R])
        return normed_RH

    def go_on(self, block: _Block) -> None:
        """Steps 1 … K - 1, for the chains that have been accepted so far."""
        accepted, drafts = self.accepted_BT.view(-1), self.drafts_BTK.view(-1, self.depth)
        alive = accepted[block.index_R].nonzero()[:, 0]
        for k in range(1, self.depth):
            if not len(alive):
                return
            self.z_BTH = self.model.step(self.model.feedback(self.z_BTH), block.token_BTK[..., k], self.cache, k)
            drafted = self.target_ids(best_tokens(self.head, self.normed(block.row_R[alive])))
            drafts[block.index_R[alive], k] = drafted.to(torch.int32)
            alive = alive[drafted == block.wanted_RK[alive, k]]
            accepted[block.index_R[alive]] = k + 1

    def record_first(self, block: _Block, draft_R: Tensor) -> None:
        """What the first draft of every root was."""
        drafted_R = self.target_ids(draft_R)
        self.drafts_BTK.view(-1, self.depth)[block.index_R, 0] = drafted_R.to(torch.int32)
        self.accepted_BT.view(-1)[block.index_R] = (drafted_R == block.wanted_RK[:, 0]).to(torch.int8)

    def record_divergence(self, block: _Block, divergence_R: Tensor) -> None:
        if self.divergence_BT is None:
            self.divergence_BT = torch.zeros(self.accepted_BT.shape, dtype=torch.float32, device=divergence_R.device)
        self.divergence_BT.view(-1)[block.index_R] = divergence_R

    def target_ids(self, draft_R: Tensor) -> Tensor:
        if bool((draft_R == NOT_FINITE).any()):
            raise BadCheckpoint(
                f"{self.arm.name}: its logits are not finite",
                why="what it drafts is then up to the engine",
                cure="check its weights with `draftconv inspect --deep`, and try another --dtype",
            )
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


def _first_drafts(reference: _ArmRun, others: Sequence[_ArmRun], compared: int, block: _Block) -> None:
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
