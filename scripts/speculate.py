"""Greedy speculative decoding of a drafter with a live target, counted as engines count.

One verify step: the drafter proposes K tokens by a chain, the target checks them in one pass,
the longest agreeing prefix is accepted and the target's own next token is the bonus.
The drafter's memory of accepted positions is then rebuilt from the target's states, so
its context never holds its own guesses (vLLM, SGLang and TensorRT-LLM alike).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.reference.cache import Cache
from draftconv.reference.drafter import DrafterModel


class LiveTarget(Protocol):
    """A target in the middle of one request."""

    def feed(self, token_T: Tensor) -> tuple[Tensor, Tensor]:
        """Append tokens; logits [T, V] and states [T, A, W] at the drafter's boundaries."""

    def rewind(self, rows: int) -> None:
        """Forget all tokens from position `rows` on."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One request: the generated ids, and what its verify steps accepted."""

    tokens: tuple[int, ...]
    counts: Counts


@torch.no_grad()
def speculate(drafter: DrafterModel, target: LiveTarget, prompt_T: Tensor, *, depth: int, length: int) -> Decoded:
    """Generate `length` tokens after `prompt_T` (int64), drafting `depth` tokens a step.

    The text is the target's own greedy text whatever the drafter proposes, up to the
    target's rounding between one-token and many-token passes.
    """
    if depth < 1 or length < 1 or len(prompt_T) < 1:
        raise UsageError(f"depth {depth}, length {length} and a prompt of {len(prompt_T)} tokens: all must be ≥ 1")
    logits_TV, states_TAW = target.feed(prompt_T)
    known = torch.cat((prompt_T, logits_TV[-1:].argmax(-1)))
    end = len(prompt_T) + length
    cache = drafter.cache()
    steps: list[int] = []
    while len(known) < end:
        guess_K = draft(drafter, cache, states_TAW, known[cache.rows + 1 :], depth)
        logits_TV, states_TAW = target.feed(torch.cat((known[-1:], guess_K)))
        choice_T = logits_TV.argmax(-1)
        accepted = int((choice_T[:-1] == guess_K).cumprod(0).sum())
        steps.append(accepted)
        target.rewind(len(known) + accepted)
        states_TAW = states_TAW[: accepted + 1]
        known = torch.cat((known, choice_T[: accepted + 1]))
    return Decoded(tuple(known[len(prompt_T) : end].tolist()), Counts.of(steps, depth))


@torch.no_grad()
def draft(drafter: DrafterModel, cache: Cache, states_TAW: Tensor, token_T: Tensor, depth: int) -> Tensor:
    """Extend the context by true features, then propose `depth` target ids after it: [K].

    Args:
        states_TAW: target states of the new context rows.
        token_T: the token that follows each of these rows.
    """
    z_BTH = drafter.step(drafter.fuse(states_TAW[None]), token_T[None], cache)[:, -1:]
    proposed: list[Tensor] = []
    for k in range(1, depth + 1):
        proposed.append(drafter.to_target_ids(drafter.logits(z_BTH).argmax(-1)))
        if k < depth:
            z_BTH = drafter.step(drafter.feedback(z_BTH), proposed[-1], cache, k)
    return torch.cat(proposed, dim=1)[0]
