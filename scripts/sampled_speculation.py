"""Speculative sampling of a drafter with a live target, with every die thrown: what odds on a trace are held against.

As in `speculate`, but the target's text is drawn, and drafts are the drafter's most likely tokens or drawn too. A draft
d is accepted with probability min(1, p(d) / q(d)); in place of a rejected one a token is drawn from what p has more of
than q; after K accepted ones the bonus is drawn from p (Leviathan et al. 2023, algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from speculate import LiveTarget
from torch import Tensor

from draftconv.reference.accept_length import Counts
from draftconv.reference.cache import Cache
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.processors import log_probs
from draftconv.reference.sampling import Sampling

Method = Literal["greedy", "probabilistic"]


@dataclass(frozen=True, slots=True)
class SampledRun:
    """One request: its tokens with the prompt, log p of those after it, and what its verify steps accepted.

    Attributes:
        tokens_N: int64 [prompt + length + depth]. `logprobs_N`: float32 [length + depth].
    """

    tokens_N: Tensor
    logprobs_N: Tensor
    counts: Counts


@torch.no_grad()
def speculate_sampled(
    drafter: DrafterModel,
    target: LiveTarget,
    prompt_T: Tensor,
    *,
    depth: int,
    length: int,
    sampling: Sampling,
    method: Method,
    generator: torch.Generator,
) -> SampledRun:
    """Draw `length` tokens after a prompt, and `depth` more that no step counts for."""
    logits_TV, states_TAW = target.feed(prompt_T)
    p_TV = log_probs(logits_TV[-1:], sampling)
    first = _draw(p_TV[0].exp(), generator)
    known, logprobs = [*prompt_T.tolist(), first], [float(p_TV[0, first])]
    counted_end, end = len(prompt_T) + length, len(prompt_T) + length + depth
    cache, steps = drafter.cache(), []
    while len(known) < end:
        fed = torch.tensor(known[cache.rows + 1 :])
        guesses, q_KV = _drafts(drafter, cache, states_TAW, fed, depth, sampling.temperature, method, generator)
        logits_TV, states_TAW = target.feed(torch.tensor([known[-1], *guesses]))
        p_TV = log_probs(logits_TV, sampling)
        accepted, token = _verify(p_TV.exp(), q_KV, guesses, generator)
        if len(known) < counted_end:
            steps.append(accepted)
        target.rewind(len(known) + accepted)
        states_TAW = states_TAW[: accepted + 1]
        new = [*guesses[:accepted], token]
        logprobs += [float(p_TV[j, written]) for j, written in enumerate(new)]
        known += new
    tokens_N, logprobs_N = torch.tensor(known[:end]), torch.tensor(logprobs[: length + depth])
    return SampledRun(tokens_N, logprobs_N.clamp(max=0), Counts.of(steps, depth))


def _drafts(
    drafter: DrafterModel,
    cache: Cache,
    states_TAW: Tensor,
    token_T: Tensor,
    depth: int,
    temperature: float,
    method: Method,
    generator: torch.Generator,
) -> tuple[list[int], Tensor]:
    """K target ids, and what each was drawn from, [K, V] over the target's vocabulary."""
    z_BTH = drafter.step(drafter.fuse(states_TAW[None]), token_T[None], cache)[:, -1:]
    guesses: list[int] = []
    q_KV = torch.zeros(depth, drafter.facts.vocab)
    for k in range(1, depth + 1):
        logits_V = drafter.logits(z_BTH)[0, 0].float()
        ids_V = drafter.to_target_ids(torch.arange(len(logits_V)))
        if method == "greedy":
            q_KV[k - 1, ids_V[logits_V.argmax()]] = 1
        else:
            q_KV[k - 1, ids_V] = (logits_V / temperature).softmax(-1)
        guesses.append(_draw(q_KV[k - 1], generator))
        if k < depth:
            z_BTH = drafter.step(drafter.feedback(z_BTH), torch.tensor([[guesses[-1]]]), cache, k)
    return guesses, q_KV


def _verify(p_TV: Tensor, q_KV: Tensor, guesses: list[int], generator: torch.Generator) -> tuple[int, int]:
    """How many drafts are accepted, and the token that is written after them."""
    for j, guess in enumerate(guesses):
        if float(torch.rand((), generator=generator)) >= float(p_TV[j, guess] / q_KV[j, guess]):
            return j, _draw((p_TV[j] - q_KV[j]).clamp_min(0), generator)
    return len(guesses), _draw(p_TV[len(guesses)], generator)


def _draw(weight_V: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(weight_V.double(), 1, generator=generator))
