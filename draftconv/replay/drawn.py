"""How likely drawn drafts would have been accepted on a text that the target has drawn.

An engine that draws its drafts proposes d with probability q(d) and accepts it with probability min(1, p(d) / q(d));
what it writes then follows p, whatever q is (Leviathan et al. 2023, Fast Inference from Transformers via Speculative
Decoding, algorithm 1; Chen et al. 2023, Accelerating Large Language Model Decoding with Speculative Sampling, theorem
1). So

    P(x is written and was the accepted draft) = q(x) min(1, p(x) / q(x)) = min(q(x), p(x))
    P(x was the accepted draft | x is written) = min(q(x), p(x)) / p(x)    = min(1, q(x) / p(x))

and a text tells, place by place, how likely its token came from the drafter: the drafter's dice need not be thrown.
p is the distribution that the text was drawn from, every processor included; q what the engine draws drafts from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from draftconv.errors import UsageError
from draftconv.reference.cache import Cache
from draftconv.replay.batches import BatchText, RootBlock, batches, blocks, columns_of, padded_states, refuse_clipped
from draftconv.replay.lm_head import Head, token_log_probs
from draftconv.replay.not_finite import logits_not_finite
from draftconv.replay.replay import ROWS_AT_ONCE, Arm
from draftconv.traces.request import TraceRequest
from draftconv.traces.states import chosen

IMPOSSIBLE = 1e-12
"""A chain less likely than this is not followed: 10^6 of them would not change the sixth digit of an accept length."""


@torch.no_grad()
def replay_odds(
    arms: Sequence[Arm],
    requests: Iterable[TraceRequest],
    boundaries: Sequence[int],
    *,
    depth: int,
    temperature: float,
    rows: int = ROWS_AT_ONCE,
    done: Callable[[int], None] | None = None,
) -> Iterator[tuple[TraceRequest, tuple[Tensor, ...]]]:
    """The probability that each token of the text, drafted from each root, was the accepted draft.

    Args:
        arms, requests, boundaries, depth, rows, done: as `replay.replay`.
        temperature: that drafts are drawn at. vLLM 0.32.0 v1/spec_decode/llm_base_proposer.py applies no other
            processor to them.

    Yields:
        A request, and for every arm float32 [R, K]: column j - 1 is the probability of the j-th draft, given that those
        before it were accepted; zeros behind a chain that cannot go on.

    Raises:
        UsageError: a request is greedy text, lacks a boundary, or keeps too few tokens for `depth`.
        BadCheckpoint: the states of a request, or a drafter's logits, are not finite.
    """
    columns = [columns_of(arm.name, arm.boundaries, boundaries) for arm in arms]
    for batch in batches(requests, rows):
        for request in batch:
            refuse_clipped(request, depth)
            if request.logprobs_N is None:
                raise UsageError(
                    f"request {request.id} has no log-probabilities",
                    why="how likely a drawn draft is accepted depends on how likely the target was to write the token",
                    cure="make the trace with `draftconv trace --temperature T`",
                )
        odds = _batch_odds(arms, columns, batch, depth, temperature, rows)
        for request, of_arms in zip(batch, odds, strict=True):
            if done:
                done(len(request.tokens_N))
            yield request, of_arms


def _batch_odds(
    arms: Sequence[Arm],
    columns: Sequence[list[int]],
    batch: Sequence[TraceRequest],
    depth: int,
    temperature: float,
    rows: int,
) -> list[tuple[Tensor, ...]]:
    weight = arms[0].model.fc.weight
    text = BatchText.of(batch, depth, weight.device)
    logprob_BN = _logprobs(batch, text)
    runs = [_OddsRun(arm, batch, text, temperature) for arm in arms]
    for first, last in blocks(text.width, min(request.prompt for request in batch) - 1, max(1, rows // len(batch))):
        block = text.block(first, last)
        ahead_BTK = torch.stack([logprob_BN[:, first + k : last + k] for k in range(2, depth + 2)], dim=-1)
        logp_RK = ahead_BTK.flatten(0, 1)[block.row_R]
        states_BTAW = padded_states(batch, first, last, weight.device, weight.dtype)
        for run, arm_columns in zip(runs, columns, strict=True):
            run.replay(block, chosen(states_BTAW, arm_columns), logp_RK)
    return [tuple(run.odds_BTK[b, text.root_BT[b]].cpu() for run in runs) for b in range(len(batch))]


def _logprobs(batch: Sequence[TraceRequest], text: BatchText) -> Tensor:
    """log p of the text's tokens where they stand, [B, N]; 0 for the prompt's, which no root wants."""
    logprob_BN = torch.zeros(text.token_BN.shape, dtype=torch.float32)
    for b, request in enumerate(batch):
        if request.logprobs_N is not None:
            width = min(len(request.logprobs_N), logprob_BN.shape[1] - request.prompt)
            logprob_BN[b, request.prompt : request.prompt + width] = request.logprobs_N[:width]
    return logprob_BN.to(text.token_BN.device)


class _OddsRun:
    """One arm in the middle of one batch."""

    def __init__(self, arm: Arm, batch: Sequence[TraceRequest], text: BatchText, temperature: float) -> None:
        self.batch = batch
        self.arm, self.model, self.temperature = arm, arm.model, temperature
        self.cache: Cache = arm.model.cache(text.width)
        self.head = Head.of(arm.model)
        self.row_of_V = _rows_of_tokens(arm, self.head)
        self.odds_BTK = torch.zeros((*text.root_BT.shape, text.depth), device=text.token_BN.device)

    def replay(self, block: RootBlock, states_BTAW: Tensor, logp_RK: Tensor) -> None:
        """The block's rows join the context; chains from its roots are followed as long as they are possible."""
        fused_BTH, token_BT = self.model.fuse(states_BTAW), block.token_BTK[..., 0]
        if not len(block.row_R):
            self.model.remember(fused_BTH, token_BT, self.cache)
            return
        z_BTH = self.model.step(fused_BTH, token_BT, self.cache)
        odds = self.odds_BTK.view(-1, self.odds_BTK.shape[-1])
        alive = torch.arange(len(block.row_R), device=block.row_R.device)
        chain_R = torch.ones(len(alive), device=alive.device)
        for k in range(odds.shape[1]):
            if k:
                z_BTH = self.model.step(self.model.feedback(z_BTH), block.token_BTK[..., k], self.cache, k)
            normed_RH = self.model.norm(z_BTH.flatten(0, 1)[block.row_R[alive]])
            logq_R = token_log_probs(self.head, normed_RH, self._rows(block.wanted_RK[alive, k]), self.temperature)
            bad_R = logq_R.isnan()
            if bool(bad_R.any()):
                where = int(block.index_R[alive][bad_R][0]) // self.odds_BTK.shape[1]
                raise logits_not_finite(self.arm.name, self.batch[where])
            here_R = (logq_R - logp_RK[alive, k]).clamp(max=0).exp().float()
            odds[block.index_R[alive], k] = here_R
            chain_R = chain_R * here_R
            possible = chain_R > IMPOSSIBLE
            alive, chain_R = alive[possible], chain_R[possible]
            if not len(alive):
                return

    def _rows(self, token_R: Tensor) -> Tensor:
        """Rows of the head for the target's tokens; -1 for those that it does not have."""
        return token_R if self.row_of_V is None else self.row_of_V[token_R]


def _rows_of_tokens(arm: Arm, head: Head) -> Tensor | None:
    """Token → row of the head, [V]; None where they are the same."""
    if head.d2t_V is None:
        return None
    row_V = torch.arange(len(head.weight_VH), device=head.d2t_V.device)
    of_V = torch.full((arm.model.facts.vocab,), -1, dtype=torch.int64, device=row_V.device)
    of_V[arm.model.to_target_ids(row_V)] = row_V
    return of_V
