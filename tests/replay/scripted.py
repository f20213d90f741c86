"""A target whose text is written beforehand, so that a random drafter is right about it now and then."""

from __future__ import annotations

import torch
from speculate import draft
from torch import Tensor
from torch.nn.functional import one_hot

from draftconv.drafter.facts import Facts
from draftconv.reference.drafter import DrafterModel
from draftconv.replay.replay import Arm
from draftconv.traces.request import TraceRequest
from tests.reference.variants import random_tensors


class Scripted:
    """A live target that says `tokens_N` and has `states_TAW`, whatever it is fed."""

    def __init__(self, request: TraceRequest, vocab: int) -> None:
        self.request, self.vocab, self.rows = request, vocab, 0

    def feed(self, token_T: Tensor) -> tuple[Tensor, Tensor]:
        fed = slice(self.rows, self.rows + len(token_T))
        self.rows = fed.stop
        following_T = self.request.tokens_N[fed.start + 1 : fed.stop + 1]
        return one_hot(following_T, self.vocab).double(), self.request.states_TAW[fed]

    def rewind(self, rows: int) -> None:
        self.rows = rows


def random_arm(facts: Facts, name: str = "drafter", seed: int = 0) -> Arm:
    assert isinstance(facts.boundaries, tuple)
    model = DrafterModel.from_tensors(facts, random_tensors(facts, seed), dtype=torch.float64)
    return Arm(name, model, facts.boundaries)


def scripted(arm: Arm, *, prompt: int, counted: int, beyond: int = 4, depth: int = 3, seed: int = 0) -> TraceRequest:
    """A text of random tokens and, in between, of what the arm drafts: 0…`depth` tokens at a time."""
    facts = arm.model.facts
    generator = torch.Generator().manual_seed(seed)
    length = prompt + counted + beyond
    states_TAW = torch.randn(length - 1, facts.aux, facts.target_hidden, generator=generator, dtype=torch.float64)
    tokens_N = torch.randint(0, facts.vocab, (length,), generator=generator)
    cache, row = arm.model.cache(), prompt - 1
    while row + 2 < length:
        new = slice(cache.rows, row + 1)
        guess_K = draft(arm.model, cache, states_TAW[new], tokens_N[new.start + 1 : row + 2], depth)
        kept = int(torch.randint(0, depth + 1, (1,), generator=generator))
        place = tokens_N[row + 2 : row + 2 + kept]
        place.copy_(guess_K[: len(place)])
        row += kept + 1
    return TraceRequest(str(seed), str(seed), "scripted", prompt, counted, tokens_N, states_TAW)
