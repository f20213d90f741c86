"""Odds of drawn drafts, against whole rows of logits and against drafts that are the most likely tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from truth.drafts import read

from draftconv.errors import BadCheckpoint, UsageError
from draftconv.replay.drawn import replay_odds
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.replay import Arm, replay
from draftconv.traces.request import TraceRequest
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import HELD, described, requests

FIXTURES = pytest.mark.parametrize("name", ["llama-eagle3", "llama-eagle3-reduced", "mla-eagle3.1"])
DEPTH = 3


def arm_of(name: str) -> Arm:
    target = described(name.partition("-")[0])
    tables = target.open().tensors
    lent = {"embed_tokens": tables["model.embed_tokens.weight"], "lm_head": tables.get("lm_head.weight")}
    return load_arm(name, read(DATA / "drafters" / name, name), LoadSettings(lent.get))


def texts(name: str, logprob: float = -0.5) -> list[TraceRequest]:
    """Texts of a fixture's target as if every token had been drawn with this log-probability."""
    found = requests(name.partition("-")[0], count=4)
    return [
        replace(request, logprobs_N=torch.full((len(request.tokens_N) - request.prompt,), logprob)) for request in found
    ]


def odds(arm: Arm, asked: Sequence[TraceRequest], temperature: float, rows: int = 2048) -> list[torch.Tensor]:
    found = replay_odds([arm], asked, HELD, depth=DEPTH, temperature=temperature, rows=rows)
    return [of_arm for _, (of_arm,) in found]


@FIXTURES
def test_cold_drafts_are_the_most_likely_ones(name: str) -> None:
    """At a temperature near 0 the odds are 1 where the greedy draft is the token, else 0."""
    arm, asked = arm_of(name), texts(name)
    greedy = [done.accepted_R.tolist() for _, (done,) in replay([arm], asked, HELD, depth=DEPTH)]
    for accepted, found_RK in zip(greedy, odds(arm, asked, 1e-4), strict=True):
        reached = (found_RK.cumprod(1) > 0.5).sum(1).tolist()
        assert reached == accepted
        assert bool(((found_RK < 1e-6) | (found_RK > 1 - 1e-6)).all())


@FIXTURES
def test_first_drafts_by_whole_rows(name: str) -> None:
    arm, (text, *_) = arm_of(name), texts(name, logprob=-3.0)
    (found_RK,) = odds(arm, [text], 0.8)
    columns = [HELD.index(b) for b in arm.boundaries]
    states_BTAW = text.states_TAW[:][None, :, columns]
    with torch.no_grad():
        z_BTH = arm.model.step(arm.model.fuse(states_BTAW), text.tokens_N[None, 1:], arm.model.cache())
        q_TV = (arm.model.logits(z_BTH)[0] / 0.8).softmax(-1)
    ids = arm.model.to_target_ids(torch.arange(q_TV.shape[1])).tolist()
    unmapped = 0
    for root in range(text.counted - 1):
        row = text.prompt - 1 + root
        wanted = int(text.tokens_N[row + 2])
        share = float(q_TV[row, ids.index(wanted)]) if wanted in ids else 0.0
        unmapped += wanted not in ids
        assert float(found_RK[root, 0]) == pytest.approx(min(1.0, share / float(torch.tensor(-3.0).exp())), rel=1e-3)
    assert (unmapped > 0) == ("reduced" in name)


def test_batches_and_blocks_change_nothing() -> None:
    arm, asked = arm_of("llama-eagle3-reduced"), texts("llama-eagle3-reduced")
    whole, cut = odds(arm, asked, 0.7), [row for text in asked for row in odds(arm, [text], 0.7, rows=16)]
    for one, other in zip(whole, cut, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_likelier_text_is_less_likely_the_drafters() -> None:
    """min(1, q / p): the odds fall as p grows, and are never above 1."""
    arm = arm_of("llama-eagle3")
    rare, sure = (torch.cat(odds(arm, texts("llama-eagle3", p), 0.7))[:, 0] for p in (-6.0, -0.01))
    assert bool((sure <= rare).all())
    assert float(rare.max()) == 1.0
    assert float(sure.mean()) < float(rare.mean())


def test_greedy_text_has_no_odds() -> None:
    arm = arm_of("llama-eagle3")
    with pytest.raises(UsageError, match="has no log-probabilities"):
        odds(arm, requests("llama", count=1), 0.7)


def test_logits_that_are_not_finite() -> None:
    arm = arm_of("llama-eagle3")
    broken = replace(arm, model=arm.model.changed(tensors={"norm.weight": torch.full((256,), torch.nan)}))
    with pytest.raises(BadCheckpoint, match="not finite"):
        odds(broken, texts("llama-eagle3"), 0.7)


def test_states_that_are_not_finite_are_the_traces_fault() -> None:
    *sound, last = texts("llama-eagle3")
    states_TAW = last.states_TAW[:].clone()
    states_TAW[5, :, 0] = torch.nan
    with pytest.raises(BadCheckpoint, match=f"request {last.id} holds states .* not finite, the first .* at token 5"):
        odds(arm_of("llama-eagle3"), [*sound, replace(last, states_TAW=states_TAW)], 0.7)
