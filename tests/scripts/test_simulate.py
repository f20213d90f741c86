"""scripts/simulate: its populations lose what they say, and the statistics keep their promises on them."""

from __future__ import annotations

import numpy as np
import pytest
import simulate
from simulate import Cells, Floats, Kind, Population, Simulated, engine_averages

from draftconv.reference.accept_length import Counts
from draftconv.report.statistics import Pair
from draftconv.report.verdict import Gate, judge

REPEATS = 600


# ── populations ────────────────────────────────────────────────────────────────────


def test_a_greedy_chain_is_decoded_as_one_would_by_hand() -> None:
    world = Simulated("same text", 20, tokens=40)
    accepted, steps = world.reference
    for request, right in enumerate(world.right):
        at, counts = 1, []
        while at < 40:
            run = next((j for j in range(3) if not right[at + j, j]), 3)
            counts.append(run)
            at += run + 1
        assert (accepted[request], steps[request]) == (sum(counts), len(counts))


@pytest.mark.parametrize("kind", ["same text", "split", "uneven"])
def test_a_candidate_loses_what_is_asked(kind: Kind) -> None:
    world = Simulated(kind, 600)
    for loss in (0.0, 0.02):
        assert world.losing(loss).ratio == pytest.approx(1 - loss, abs=3e-4)


def test_uneven_losses_spare_nine_requests_of_ten() -> None:
    world = Simulated("uneven", 600)
    harmless, losing = world.losing(0.0), world.losing(0.02)
    assert np.array_equal(harmless.accepted[60:], losing.accepted[60:])
    assert losing.accepted[:60, 1].sum() < harmless.accepted[:60, 1].sum()


def test_samples_keep_the_arms_of_a_request_together() -> None:
    numbers = np.arange(50.0)
    population = Population(np.stack((numbers, numbers + 100), 1), np.stack((numbers + 200, numbers + 300), 1))
    sample = population.samples(7, 3, np.random.default_rng(0))
    assert sample.shape == (7, 2, 2, 3)
    first = sample[:, 0, 0]
    assert np.array_equal(
        sample, np.stack([np.stack([first, first + 100], 1), np.stack([first + 200, first + 300], 1)], 1)
    )


def test_averages_in_use_are_not_accept_length() -> None:
    short, long = engine_averages(32, 500), engine_averages(256, 500)
    mean, bench = "mean over requests of 1 + accepted / steps", "tokens / (steps + 1), pooled (trtllm-bench)"
    assert short[mean] > long[mean] > 0.005
    assert short[bench] < -0.05 < long[bench] < 0


# ── statistics ─────────────────────────────────────────────────────────────────────


def histogram(accepted: float, steps: float) -> Counts:
    """Some histogram, K = 3, of so many steps and accepted tokens."""
    full, rest = divmod(int(accepted), 3)
    tail = [int(rest == j) for j in (1, 2)]
    return Counts((int(steps) - full - sum(tail), *tail, full))


def pairs(sample: Floats) -> list[Pair]:
    """One sample [prompts, 2, 2], as `judge` wants it."""
    categories = np.array_split(np.arange(len(sample)), simulate.CATEGORIES)
    return [
        Pair(f"{i}", f"{i:04}", f"{number}", histogram(*sample[i, :, 0]), histogram(*sample[i, :, 1]))
        for number, rows in enumerate(categories)
        for i in rows
    ]


def test_many_samples_at_once_are_judged_as_one_is() -> None:
    samples = Simulated("split", 400).losing(0.02).samples(40, 6, np.random.default_rng(5))
    found = simulate.judged(samples)
    outcomes = []
    for i in range(6):
        verdict = judge(pairs(samples[..., i]), Gate(0.02), how="replay")
        assert verdict.estimate is not None
        assert verdict.estimate.interval.low == pytest.approx(found.bounds.low[i], rel=1e-12)
        assert verdict.estimate.interval.high == pytest.approx(found.bounds.high[i], rel=1e-12)
        for category, high in zip(verdict.categories.values(), found.categories[:, i], strict=True):
            assert category.interval.high >= min(high, 4) * (1 - 1e-12)
        assert (verdict.outcome == "fail") == found.fails(0.02)[i]
        assert (verdict.outcome in ("pass", "equivalent")) == found.passes(0.02)[i]
        outcomes.append(verdict.outcome)
    assert len(set(outcomes)) > 1


@pytest.fixture(scope="module")
def cells() -> Cells:
    return simulate.simulate(("same text", "split"), (0.0, 0.02, 0.04), (30, 80), repeats=REPEATS, requests=3000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "prompts", "power"),
    [("same text", 30, 0.86), ("same text", 80, 0.98), ("split", 30, 0.46), ("split", 80, 0.87)],
)
def test_promises_are_kept(cells: Cells, kind: Kind, prompts: int, power: float) -> None:
    """Bands lie four standard errors of 600 samples around what is promised, or around docs/statistics.md."""
    good, edge, bad = (cells[kind, loss, prompts] for loss in (0.0, 0.02, 0.04))
    for cell in (good, edge, bad):
        assert 0.91 < cell.covered("") < 0.985
    margin = 1 - edge.truth
    assert edge.passes(margin) < 0.025 + 0.026
    assert edge.passes(margin) <= edge.passes_in_two(margin) < 0.05 + 0.036
    assert good.fails(0.02) < 0.02
    assert good.passes(0.02) > power
    assert bad.passes(0.02) < 0.01


@pytest.mark.slow
def test_the_simulation_would_notice_an_interval_that_is_too_narrow(cells: Cells) -> None:
    for kind in ("same text", "split"):
        assert cells[kind, 0.0, 30].covered("bootstrap_") < 0.925


# ── page ───────────────────────────────────────────────────────────────────────────


def test_parts_go_to_their_places_on_the_page() -> None:
    page = "a\n<!-- simulated: one -->\nold\n<!-- end: one -->\nb\n"
    new = simulate.filled(page, {"one": "new\n"})
    assert new == "a\n<!-- simulated: one -->\n\nnew\n\n<!-- end: one -->\nb\n"
    assert simulate.filled(new, {"one": "new\n"}) == new
    for parts in ({}, {"one": "", "two": ""}):
        with pytest.raises(SystemExit, match="differ"):
            simulate.filled(page, parts)


def test_the_page_has_a_place_for_every_table() -> None:
    places = {match["name"] for match in simulate.PART.finditer(simulate.PAGE.read_text(encoding="utf-8"))}
    assert places == {"averages", "spread", "coverage", "decisions-1", "decisions-2"}


def test_nothing_is_minus_zero() -> None:
    assert simulate.percent(-0.0004, "+") == "+0.0 %"
    assert simulate.percent(-0.0006, "+") == "-0.1 %"
    assert simulate.percent(0.9501) == "95.0 %"
