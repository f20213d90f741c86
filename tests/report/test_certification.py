"""Certificates: what they rest on, how sure they are, and who gets none."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report.certification import Certificate, certifiable_loss, certify, lower_bounds, share_of
from draftconv.report.statistics import Pair, estimate
from draftconv.report.student import t_quantile

PROMPTS = 60


def made(loss: float, prompts: int = PROMPTS, seed: int = 0) -> list[Pair]:
    """Paired counts at K = 2; the candidate loses this share of the accepted tokens."""
    rng = random.Random(seed)
    pairs = []
    for number in range(prompts):
        accepted = [rng.choice((0, 1, 2)) for _ in range(40)]
        lost = [a - 1 if a and rng.random() < loss else a for a in accepted]
        pairs.append(Pair(f"r{number}", f"p{number}", "", Counts.of(accepted, 2), Counts.of(lost, 2)))
    return pairs


def test_the_bound_is_the_lower_of_bootstrap_and_delta() -> None:
    pairs = made(0.02)
    found = certify({"one": pairs}, 0.05, alpha=0.025)["one"]
    both = estimate(pairs)
    assert found.low == min(both.bootstrap.low, both.delta.low)
    assert (found.ratio, found.spread, found.clusters) == (both.ratio, both.spread, PROMPTS)


def test_a_level_is_divided_among_the_candidates() -> None:
    pairs = made(0.02)
    alone = certify({"one": pairs}, 0.05)["one"]
    of_four = certify(dict.fromkeys(("a", "b", "c", "d"), pairs), 0.05)["a"]
    assert (alone.level, of_four.level) == (0.05, 0.0125)
    assert of_four.low < alone.low


def test_the_delta_bound_follows_its_formula() -> None:
    accepted, steps = (np.array([[[a] for a in pair] for pair in rows], float) for rows in _counts(made(0.03)))
    bounds = lower_bounds([PROMPTS], accepted[..., 0], steps[..., 0], 0.01)
    t = t_quantile(0.99, PROMPTS - 1)
    expected = float(bounds.ratio) * math.exp(-t * float(bounds.spread) / math.sqrt(PROMPTS))
    assert float(bounds.delta_low) == pytest.approx(expected, rel=1e-12)


def _counts(pairs: list[Pair]) -> tuple[list[list[float]], list[list[float]]]:
    both = [(pair.reference, pair.candidate) for pair in pairs]
    return [[c.accepted for c in two] for two in both], [[c.steps for c in two] for two in both]


def test_a_drafter_that_keeps_its_accept_length_passes_and_one_that_does_not_fails() -> None:
    sound, worse = made(0.002, 300), made(0.05, 300)
    found = certify({"sound": sound, "worse": worse}, 0.01)
    assert found["sound"].passed
    assert not found["worse"].passed


def test_few_prompts_certify_nothing() -> None:
    equal = [Pair(f"{n}", f"{n}", "", Counts.of([2, 1], 2), Counts.of([2, 1], 2)) for n in range(29)]
    found = certify({"equal": equal}, 0.5)["equal"]
    assert found.low == 1.0
    assert not found.passed
    assert Certificate(1.0, 1.0, 0.05, 0.5, 30, 0.0).passed


def test_the_smallest_loss_that_prompts_certify_passes_nine_times_of_ten() -> None:
    spread, prompts, level = 0.04, 100, 0.01
    loss = certifiable_loss(spread, prompts, level)
    draws = np.random.default_rng(0).normal(0, spread, (4000, prompts))
    t = t_quantile(1 - level, prompts - 1)
    low = draws.mean(1) - t * draws.std(1, ddof=1) / math.sqrt(prompts)
    assert (low > math.log(1 - loss)).mean() == pytest.approx(0.9, abs=0.02)
    assert certifiable_loss(spread, 29, level) == 1.0


@pytest.mark.parametrize(
    ("alpha", "candidates", "says"),
    [(0.0, 1, "is not between 0 and 0.5"), (0.6, 1, "is not between"), (0.01, 6, "divided among 6 candidates")],
)
def test_levels_that_no_resample_reaches_are_refused(alpha: float, candidates: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        share_of(alpha, candidates)


def test_nothing_to_certify_is_refused() -> None:
    with pytest.raises(UsageError, match="no candidate to certify"):
        certify({}, 0.01)
