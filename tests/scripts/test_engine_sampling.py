"""The replay of sampled text against vLLM's dice: what is counted of a text, and a small run of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_sampling import ENGINE, SETTINGS, TOLERANCE, Drawn, draw, measure, table
from sampled_speculation import Method
from simulate_sampling import DEPTH, LENGTH, Subject

from draftconv.reference.accept_length import Counts


def test_steps_that_start_beyond_the_end_do_not_count() -> None:
    tokens, accepted = list(range(LENGTH + DEPTH)), [3] * 7 + [2, 1, 0]
    drawn = Drawn.of([7, 7], tokens, [-0.5] * len(tokens), accepted)
    assert drawn.run.counts == Counts.of([3] * 7 + [2], DEPTH)  # 29 tokens before the eighth step, 32 after it
    assert drawn.run.tokens_N.tolist() == [7, 7, *tokens]
    assert len(drawn.run.logprobs_N) == LENGTH + DEPTH


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE.exists(), reason="no engine environment; scripts/engine-env makes one")
@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_a_real_vllm_and_the_replay(method: Method) -> None:
    torch.set_num_threads(1)
    subject = Subject.of("llama-eagle3-reduced")
    (found,) = measure(subject, method, SETTINGS[:1], 64)
    assert found.logprob < TOLERANCE
    assert "| 64 |" in table([found])
    assert not replace(found, logprob=2 * TOLERANCE).holds
    if method == "greedy":
        assert found.cell.equal == found.cell.runs
    else:
        assert abs(found.cell.score) < 4
        assert found.cell.fault is not None
        assert found.cell.fault < -6


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE.exists(), reason="no engine environment; scripts/engine-env makes one")
def test_the_cpu_build_as_it_is() -> None:
    """Its log-probabilities are of no distribution that was asked for; where it is mended, so may our words be."""
    _, ((drawn,),) = draw(Subject.of("llama-eagle3-reduced"), "greedy", SETTINGS[:1], 1, mended=False)
    told_N = drawn.run.logprobs_N[1:]  # the first token is written before anything is drafted
    assert bool((told_N.isnan() | (told_N < -7)).any())
