"""Greedy speculation: the text is the target's own, and the counts are the engines'."""

from dataclasses import replace

import pytest
import torch
from speculate import Decoded, speculate
from target_model import TargetSession, continue_greedily
from torch import Tensor

from draftconv.drafter.facts import Facts
from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.reference.cache import Cache
from draftconv.reference.drafter import DrafterModel
from tests.reference.variants import LLAMA, MLA, random_tensors
from tests.scripts.test_target_model import random_target

VOCAB = 40


def successor(token: Tensor) -> Tensor:
    return (3 * token + 1) % VOCAB


class Counting:
    """A target whose text is `successor`; it remembers nothing but how many rows it holds."""

    def __init__(self) -> None:
        self.rows = 0

    def feed(self, token_T: Tensor) -> tuple[Tensor, Tensor]:
        self.rows += len(token_T)
        return torch.nn.functional.one_hot(successor(token_T), VOCAB).float(), torch.zeros(len(token_T), 3, 16)

    def rewind(self, rows: int) -> None:
        self.rows = rows


class Oracle(DrafterModel):
    """Knows `successor`, and is wrong from draft position `right` on."""

    right = 3

    def step(self, state_BTH: Tensor, token_BT: Tensor, cache: Cache, k: int = 0) -> Tensor:
        del state_BTH  # an oracle needs no state
        cache.advance(token_BT.shape[1], k, token_BT.device)
        guess = successor(token_BT) if k < self.right else successor(token_BT) + 1
        return torch.nn.functional.one_hot(guess % VOCAB, VOCAB).float()

    def logits(self, z_BTH: Tensor) -> Tensor:
        return z_BTH


def run_oracle(right: int, length: int, depth: int = 3) -> Decoded:
    oracle = Oracle.from_tensors(LLAMA, random_tensors(LLAMA))
    oracle.right = right
    target = Counting()
    decoded = speculate(oracle, target, torch.tensor([2, 7]), depth=depth, length=length)
    text = [7]
    for _ in range(length):
        text.append(int(successor(torch.tensor(text[-1]))))
    assert list(decoded.tokens) == text[1:]
    return decoded


@pytest.mark.parametrize(
    ("right", "length", "histogram"),
    [
        (3, 1, (0, 0, 0, 0)),  # the prompt's pass alone gives the first token
        (3, 5, (0, 0, 0, 1)),
        (3, 6, (0, 0, 0, 2)),  # a step that starts before the end counts whole
        (3, 9, (0, 0, 0, 2)),
        (2, 7, (0, 0, 2, 0)),
        (1, 7, (0, 3, 0, 0)),
        (0, 7, (6, 0, 0, 0)),
    ],
)
def test_counts(right: int, length: int, histogram: tuple[int, ...]) -> None:
    assert run_oracle(right, length).counts == Counts(histogram)


def test_depth_is_the_number_of_drafted_tokens() -> None:
    assert run_oracle(9, 13, depth=5).counts == Counts((0, 0, 0, 0, 0, 2))
    assert run_oracle(9, 5, depth=1).counts == Counts((0, 2))


@pytest.mark.parametrize("base", [LLAMA, MLA], ids=["llama", "mla"])
@pytest.mark.parametrize("version", ["3", "3.1"])
@pytest.mark.parametrize("reduced", [False, True])
def test_text_is_the_targets_own(base: Facts, version: str, reduced: bool) -> None:
    facts = base
    if version == "3.1":
        facts = replace(facts, fusion="fc_norm", feedback="post-norm")
    if reduced:
        facts = replace(facts, draft_vocab=20, vocab_order="ascending")
    target = random_target(facts)
    drafter = DrafterModel.from_tensors(facts, random_tensors(facts), dtype=torch.float64)
    prompt = torch.tensor([3, 1, 4, 1, 5])
    decoded = speculate(drafter, TargetSession(target, (1, 2, 3)), prompt, depth=3, length=20)
    assert list(decoded.tokens) == continue_greedily(target, prompt[None], 20)[0].tolist()


@pytest.mark.parametrize("wrong", [{"depth": 0, "length": 4}, {"depth": 3, "length": 0}])
def test_impossible_requests_are_refused(wrong: dict[str, int]) -> None:
    oracle = Oracle.from_tensors(LLAMA, random_tensors(LLAMA))
    with pytest.raises(UsageError, match="must be ≥ 1"):
        speculate(oracle, Counting(), torch.tensor([1]), **wrong)
