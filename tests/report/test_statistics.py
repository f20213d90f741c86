"""Accept length, its ratio and their intervals, against hand computation and a second implementation."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report import resampling
from draftconv.report.intervals import Interval
from draftconv.report.statistics import (
    Discordant,
    Pair,
    by_category,
    by_depth,
    discordance,
    estimate,
    more_prompts,
)
from tests.report.counted import counts, pair, pairs

T_1 = 12.7062047361747  # t quantile at 0.975 with one degree of freedom


# ── by hand ────────────────────────────────────────────────────────────────────────


def test_two_prompts_by_hand() -> None:
    found = estimate([pair("a", 60, 40), pair("b", 80, 80)])
    reference, candidate = 1 + 140 / 200, 1 + 120 / 200
    assert (found.reference.value, found.candidate.value) == (reference, candidate)
    assert found.ratio == candidate / reference
    assert (found.requests, found.clusters) == (2, 2)
    # psi of the second prompt; the first has its negative
    psi = (80 - 0.6 * 100) / (100 * candidate) - (80 - 0.7 * 100) / (100 * reference)
    assert found.spread == pytest.approx(math.sqrt(2) * psi)
    reach = T_1 * math.sqrt(2) * psi / math.sqrt(2)
    assert found.delta.low == pytest.approx(max(found.ratio * math.exp(-reach), 0.5))
    assert found.delta.high == pytest.approx(min(found.ratio * math.exp(reach), 2))
    # a quarter of all resamples is twice the first prompt, a quarter twice the second
    assert found.bootstrap == Interval(1.4 / 1.6, 1.0)


def test_pooled_by_steps_not_averaged_by_request() -> None:
    few, many = Counts((1, 0, 0, 9)), Counts((90, 10, 0, 0))
    found = estimate([Pair("a", "a", "all", few, few), Pair("b", "b", "all", many, many)])
    assert found.reference.value == 1 + (27 + 10) / 110


def test_turns_of_a_prompt_are_one_cluster() -> None:
    turns = [pair("a/1", 60, 40, cluster="a"), pair("a/2", 70, 60, cluster="a"), pair("b/1", 80, 80, cluster="b")]
    merged = [
        Pair("a", "a", "all", counts(130, 200), counts(100, 200)),
        Pair("b", "b", "all", counts(80), counts(80)),
    ]
    assert replace(estimate(turns), requests=2) == estimate(merged)


def test_the_interval_reaches_over_both_methods() -> None:
    found = estimate(pairs(12, (60, 75, 80, 90)))
    assert found.interval.low == min(found.bootstrap.low, found.delta.low)
    assert found.interval.high == max(found.bootstrap.high, found.delta.high)
    assert found.interval.low < found.ratio < found.interval.high


def test_one_prompt_tells_no_spread() -> None:
    found = estimate([pair("a", 60, 40)])
    assert found.interval == found.delta == Interval(1 / 2, 2)
    assert found.bootstrap == Interval(found.ratio, found.ratio)
    assert found.reference.interval == Interval(1, 2)
    assert (found.spread, found.disagree) == (0, True)


def test_methods_that_disagree_are_noticed() -> None:
    assert not estimate(pairs(40, (70, 80, 90))).disagree
    alone = [replace(p, category=p.id) for p in pairs(40, (70, 80, 90))]
    found = estimate(alone)  # every prompt its own stratum: resampling changes nothing
    assert found.bootstrap == Interval(found.ratio, found.ratio)
    assert found.disagree
    assert found.interval == found.delta


# ── a second implementation ────────────────────────────────────────────────────────


def some_pairs(number: int, seed: int) -> list[Pair]:
    """So many prompts in two categories, K = 3; every third has two turns."""
    draw = random.Random(seed)

    def some() -> Counts:
        return Counts(tuple(draw.randint(1, 40) for _ in range(4)))

    prompts = [(f"{i}", turn) for i in range(number) for turn in range(1 + (i % 3 == 0))]
    return [Pair(f"{i}/{turn}", i, "uv"[int(i) % 2], some(), some()) for i, turn in prompts]


def plain(pairs: list[Pair]) -> tuple[float, Interval, Interval, float]:
    """Ratio, bootstrap, delta and spread in plain Python, cluster by cluster."""
    clusters: dict[tuple[str, str], list[Pair]] = {}
    for one in sorted(pairs, key=lambda p: (p.category, p.cluster)):
        clusters.setdefault((one.category, one.cluster), []).append(one)
    keys = list(clusters)
    arms = [
        [
            [sum(getattr(getattr(p, arm), what) for p in rows) for what in ("accepted", "steps")]
            for arm in ("reference", "candidate")
        ]
        for rows in clusters.values()
    ]

    def length(rows: list[int], arm: int) -> float:
        return float(1 + sum(arms[i][arm][0] for i in rows) / sum(arms[i][arm][1] for i in rows))

    def ratio(rows: list[int]) -> float:
        return length(rows, 1) / length(rows, 0)

    n = len(arms)
    everything = list(range(n))
    raw = np.random.PCG64(resampling.SEED).random_raw(resampling.RESAMPLES * n).tolist()
    same = [[j for j in everything if keys[j][0] == keys[i][0]] for i in everything]
    ratios = sorted(
        ratio([same[i][(raw[b * n + i] >> 32) * len(same[i]) >> 32] for i in everything])
        for b in range(resampling.RESAMPLES)
    )
    psi = [0.0] * n
    for arm, sign in ((0, -1), (1, 1)):
        a = length(everything, arm) - 1
        mean = sum(arms[i][arm][1] for i in everything) / n
        for i in everything:
            psi[i] += sign * (arms[i][arm][0] - a * arms[i][arm][1]) / (mean * length(everything, arm))
    mean = sum(psi) / n
    spread = math.sqrt(sum((x - mean) ** 2 for x in psi) / (n - 1))
    half = {6: 2.57058183563631, 11: 2.22813885198627}[n] * spread / math.sqrt(n)
    middle = ratio(everything)
    return (
        middle,
        Interval(ratios[250], ratios[-251]),
        Interval(middle * math.exp(-half), middle * math.exp(half)),
        spread,
    )


@pytest.mark.parametrize("clusters", [6, 11])
def test_equals_a_plain_implementation(clusters: int) -> None:
    sample = some_pairs(clusters, seed=clusters)
    ratio, bootstrap, delta, spread = plain(sample)
    found = estimate(sample)
    assert found.clusters == clusters
    assert found.ratio == ratio
    assert found.bootstrap == bootstrap
    assert (found.delta.low, found.delta.high) == pytest.approx((delta.low, delta.high), rel=1e-12)
    assert found.spread == pytest.approx(spread, rel=1e-12)


def test_the_bytes_are_those_of_every_numpy() -> None:
    """The raw stream of PCG64 is frozen by NumPy's policy; a distribution's would not be."""
    found = estimate(some_pairs(16, seed=3)).bootstrap
    assert (found.low.hex(), found.high.hex()) == ("0x1.e83945d1fc246p-1", "0x1.12e3477dc72d8p+0")


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = some_pairs(16, seed=4)
    whole = estimate(sample)
    monkeypatch.setattr(resampling, "BLOCK", 80)
    assert estimate(sample) == whole


# ── properties ─────────────────────────────────────────────────────────────────────

histograms = st.tuples(*[st.integers(1, 60)] * 4).map(Counts)
samples = st.lists(st.tuples(histograms, histograms, st.sampled_from("xyz")), min_size=2, max_size=12).map(
    lambda rows: [Pair(f"{i}", f"{i}", category, r, q) for i, (r, q, category) in enumerate(rows)]
)
few = settings(max_examples=15)


@few
@given(samples)
def test_equal_arms_are_equal_exactly(sample: list[Pair]) -> None:
    found = estimate([replace(p, candidate=p.reference) for p in sample])
    assert found.ratio == 1
    assert found.interval == found.bootstrap == found.delta == Interval(1, 1)
    assert found.spread == 0
    assert found.reference == found.candidate


@few
@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_requests_changes_no_bit(sample: list[Pair], shuffle: random.Random) -> None:
    mixed = list(sample)
    shuffle.shuffle(mixed)
    assert estimate(mixed) == estimate(sample)
    assert by_category(mixed) == by_category(sample)
    assert by_depth(mixed) == by_depth(sample)


@few
@given(samples)
def test_swapping_the_arms_inverts_the_ratio(sample: list[Pair]) -> None:
    found = estimate(sample)
    swapped = estimate([replace(p, reference=p.candidate, candidate=p.reference) for p in sample])
    assert (swapped.reference, swapped.candidate) == (found.candidate, found.reference)
    assert swapped.spread == pytest.approx(found.spread)
    for here, there in ((swapped.interval, found.interval), (swapped.bootstrap, found.bootstrap)):
        assert (here.low, here.high) == pytest.approx((1 / there.high, 1 / there.low), rel=1e-12)


@few
@given(samples, st.integers(2, 9))
def test_longer_answers_of_the_same_kind_change_nothing(sample: list[Pair], times: int) -> None:
    def longer(counts: Counts) -> Counts:
        return Counts(tuple(times * n for n in counts.histogram))

    scaled = estimate([replace(p, reference=longer(p.reference), candidate=longer(p.candidate)) for p in sample])
    found = estimate(sample)
    assert scaled.bootstrap == found.bootstrap
    assert (scaled.interval.low, scaled.interval.high) == pytest.approx((found.interval.low, found.interval.high))


@few
@given(samples)
def test_a_turn_repeated_is_no_new_evidence_but_a_prompt_is(sample: list[Pair]) -> None:
    found = estimate(sample)
    turns = estimate([*sample, *(replace(p, id=f"again-{p.id}") for p in sample)])
    assert (turns.clusters, turns.bootstrap, turns.interval) == (found.clusters, found.bootstrap, found.interval)
    prompts = estimate([*sample, *(replace(p, id=f"again-{p.id}", cluster=f"again-{p.id}") for p in sample)])
    assert prompts.ratio == found.ratio
    assert prompts.delta.high / prompts.delta.low <= found.delta.high / found.delta.low


@few
@given(samples)
def test_intervals_stay_in_what_is_possible(sample: list[Pair]) -> None:
    found = estimate(sample)
    assert 1 / 4 <= found.interval.low <= found.ratio <= found.interval.high <= 4
    for arm in (found.reference, found.candidate):
        assert 1 <= arm.interval.low <= arm.value <= arm.interval.high <= 4


# ── categories and depths ──────────────────────────────────────────────────────────


def test_categories_are_estimated_on_their_own() -> None:
    code, prose = pairs(6, (70, 80), category="code"), pairs(4, (90, 60), category="prose")
    found = by_category([*prose, *code])
    assert list(found) == ["code", "prose"]
    assert found == {"code": estimate(code), "prose": estimate(prose)}


def test_strata_keep_their_share_in_every_resample() -> None:
    easy, hard = pairs(5, 90, reference=90, category="easy"), pairs(5, 50, reference=50, category="hard")
    stratified = estimate([*easy, *hard]).reference
    loose = estimate([replace(p, category="all") for p in (*easy, *hard)]).reference
    assert stratified.interval == loose.interval  # the delta method keeps the spread between categories
    sizes, column = [5, 5], np.array([[90.0]] * 5 + [[50.0]] * 5)
    assert set(resampling.resampled(sizes, column).ravel()) == {700}
    assert len(set(resampling.resampled([10], column).ravel())) > 5


def test_acceptance_by_depth() -> None:
    sample = some_pairs(16, seed=5)
    reference = Counts.pooled(p.reference for p in sample)
    candidate = Counts.pooled(p.candidate for p in sample)
    found = by_depth(sample)
    assert [row.depth for row in found] == [1, 2, 3]
    for row in found:
        assert row.reached.reference.value == reference.reached(row.depth)
        assert row.reached.difference.value == candidate.reached(row.depth) - reference.reached(row.depth)
        assert row.conditional is not None
        assert row.conditional.candidate.value == candidate.conditional(row.depth)
        interval = row.reached.reference.interval
        assert 0 <= interval.low < row.reached.reference.value < interval.high <= 1
    assert found[0].conditional == found[0].reached


def test_equal_arms_differ_by_nothing_at_any_depth() -> None:
    for row in by_depth([replace(p, candidate=p.reference) for p in some_pairs(8, seed=6)]):
        assert (row.reached.difference.value, row.reached.difference.interval) == (0, Interval(0, 0))


def test_no_rate_where_hardly_a_step_came() -> None:
    rare = [Pair(f"{i}", f"{i}", "all", Counts((9, 1, int(i == 0))), Counts((9, 1, 0))) for i in range(6)]
    first, second = by_depth(rare)
    assert first.conditional is not None
    assert second.reached.reference.value == 1 / 61
    assert second.conditional is not None
    never = [replace(p, reference=Counts((5, 0, 0)), candidate=Counts((5, 0, 0))) for p in rare]
    assert by_depth(never)[1].conditional is None
    assert by_depth(never)[1].reached.reference.interval == Interval(0, 0)


# ── discordance ────────────────────────────────────────────────────────────────────


def test_discordance_by_hand() -> None:
    found = discordance([Discordant(f"{i}", "all", 50, 5, 2) for i in range(4)])
    assert found.positions == 200
    assert (found.lost.value, found.gained.value, found.net.value) == (0.1, 0.04, 12 / 200)
    assert found.net.interval == Interval(12 / 200, 12 / 200)


def test_discordance_is_resampled_by_prompt() -> None:
    rows = [Discordant(f"{i}", "all", 50, 10 * (i % 2), 3) for i in range(10)]
    turns = [replace(row, positions=25, lost=row.lost // 2, gained=gained) for row in rows for gained in (1, 2)]
    assert discordance(turns) == discordance(rows)
    found = discordance(rows)
    assert found.lost.interval.low < 0.1 < found.lost.interval.high
    assert found.gained.interval == Interval(0.06, 0.06)
    assert -1 <= found.net.interval.low < found.net.value < found.net.interval.high <= 1


def test_a_request_without_positions_says_nothing() -> None:
    row, empty = Discordant("a", "all", 50, 5, 2), Discordant("b", "all", 0, 0, 0)
    assert discordance([row, empty]) == discordance([row])
    with pytest.raises(UsageError, match="no position"):
        discordance([empty])


# ── how many prompts ───────────────────────────────────────────────────────────────


def test_more_prompts_by_the_formula() -> None:
    found = replace(estimate(pairs(80, (75, 85))), ratio=1.0, spread=0.06)
    t, z = 1.9904502102301287, 1.2815515655446004
    enough = math.ceil(((t + z) * 0.06 / -math.log(0.98)) ** 2)
    assert more_prompts(found, 0.02) == enough - 80 == 15


@pytest.mark.parametrize(("clusters", "more"), [(29, 1), (12, 18), (30, 1), (80, 1)])
def test_never_fewer_than_thirty_and_at_least_one(clusters: int, more: int) -> None:
    assert more_prompts(estimate(pairs(clusters, 80)), 0.02) == more


def test_what_no_prompts_can_settle() -> None:
    found = replace(estimate(pairs(80, (75, 85))), spread=0.05)
    assert more_prompts(replace(found, ratio=0.98), 0.02) is None
    assert more_prompts(replace(found, ratio=0.9801), 0.02) is None
    assert more_prompts(replace(found, ratio=0.983), 0.02) == 2785
    assert more_prompts(replace(found, ratio=0.98, spread=0.0), 0.02) is None


def test_a_worse_candidate_is_settled_sooner() -> None:
    found = replace(estimate(pairs(40, (75, 85))), spread=0.08)
    needed = [more_prompts(replace(found, ratio=ratio), 0.02) for ratio in (0.975, 0.97, 0.96, 0.90)]
    assert needed == sorted(needed, key=lambda n: -(n or 0))
    assert needed[-1] == 1


# ── what cannot be compared ────────────────────────────────────────────────────────

ONE, TWO = pair("a", 60, 40), pair("b", 80, 80)


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ([], "no requests"),
        ([ONE, TWO, ONE], "request a is there 2 times"),
        ([ONE, pair("b", 80, 80, cluster="a", category="code")], "prompt a is in two categories, all and code"),
        ([ONE, replace(TWO, candidate=counts(0, 0))], "request b has no verify step"),
        ([ONE, replace(TWO, reference=Counts((1, 1, 1)), candidate=Counts((1, 1, 1)))], "same depth"),
        ([ONE, replace(TWO, candidate=Counts((1, 1, 1)))], "same depth"),
    ],
)
def test_what_cannot_be_compared(sample: list[Pair], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        estimate(sample)
