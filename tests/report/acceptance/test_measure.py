"""One drafter's figures are those that a comparison states of its reference, to the last bit."""

from __future__ import annotations

import random

import pytest

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report.acceptance import measure as module
from draftconv.report.acceptance.measure import AcceptLength, measure
from draftconv.report.intervals import Interval, Measured
from draftconv.report.statistics import Pair, by_category, by_depth, estimate


def some(number: int, seed: int = 1, *, fewest: int = 1) -> dict[str, Counts]:
    draw = random.Random(seed)
    return {f"{i}": Counts(tuple(draw.randint(fewest, 30) for _ in range(4))) for i in range(number)}


def category(cluster: str) -> str:
    return "uv"[int(cluster) % 2]


def pairs(counts: dict[str, Counts]) -> list[Pair]:
    return [Pair(name, name, category(name), one, one) for name, one in counts.items()]


def measured(counts: dict[str, Counts], part: dict[str, Counts] | None = None) -> AcceptLength:
    return measure({name: category(name) for name in counts}, {"only": part or counts})["only"]


@pytest.mark.parametrize("number", [1, 2, 7, 40])
def test_equals_the_reference_of_a_comparison(number: int) -> None:
    counts = some(number, number)
    found, compared = measured(counts), estimate(pairs(counts))
    assert found.length == compared.reference
    assert (found.prompts, found.steps) == (number, sum(one.steps for one in counts.values()))
    assert found.length.value == pytest.approx(1 + found.accepted / found.steps, abs=1e-15)


def test_equals_the_rates_of_a_comparison_by_depth() -> None:
    counts = some(12)
    found, depths = measured(counts), by_depth(pairs(counts))
    assert list(found.reached) == [depth.reached.reference for depth in depths]
    assert list(found.conditional) == [depth.conditional and depth.conditional.reference for depth in depths]
    assert len(found.reached) == 3


def test_equals_a_comparison_of_each_category() -> None:
    counts = some(14)
    for name, compared in by_category(pairs(counts)).items():
        part = {cluster: one for cluster, one in counts.items() if category(cluster) == name}
        assert measured(part).length == compared.reference
        within = measured(counts, part).length  # of the resamples of all prompts: other draws, the same delta method
        assert within.value == compared.reference.value
        assert within.interval.low == pytest.approx(compared.reference.interval.low, abs=0.02)
        assert within.interval.high == pytest.approx(compared.reference.interval.high, abs=0.02)


@pytest.mark.parametrize("columns", [1, 4, 9, 512])
def test_slices_do_not_move_each_other(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = some(9)
    alone = measured(counts)
    monkeypatch.setattr(module, "COLUMNS", columns)
    cut = {name: Counts(one.histogram[:3]) for name, one in counts.items()}
    beside = measure(
        {name: category(name) for name in counts}, {"a": some(9, 2), "b": cut, "c": counts, "d": some(9, 3)}
    )
    assert list(beside) == ["a", "b", "c", "d"]
    assert beside["c"] == alone
    assert beside["b"] == measured(cut)


def test_a_slice_that_a_resample_may_lack_tells_no_interval() -> None:
    """Two of twenty prompts have steps in it: about one resample of eight has neither."""
    counts = some(20)
    part = {name: counts[name] for name in ("3", "8")}
    found = measured(counts, part)
    steps = sum(one.steps for one in part.values())
    accepted = sum(one.accepted for one in part.values())
    assert found.prompts == 2
    assert found.length == Measured(1 + accepted / steps, Interval(1.0, 4.0))
    assert [rate.interval for rate in found.reached] == [Interval(0.0, 1.0)] * 3
    assert found.reached[0].value == sum(one.steps - one.histogram[0] for one in part.values()) / steps
    assert found.conditional == (None, None, None)


def test_a_depth_that_nobody_reached_has_no_rate_of_those_before() -> None:
    found = measured({name: Counts((9, one.steps, 0, 0)) for name, one in some(6).items()})
    assert [rate.value for rate in found.reached[1:]] == [0.0, 0.0]
    assert found.conditional[1] is not None
    assert found.conditional[1].value == 0.0
    assert found.conditional[2] is None


def test_one_prompt_tells_no_spread() -> None:
    found = measured({"0": Counts((3, 2, 1, 4))})
    assert found.length == Measured(1 + 16 / 10, Interval(1.0, 4.0))
    assert {rate.interval for rate in found.reached} == {Interval(0.0, 1.0)}


def test_a_slice_without_a_step_is_left_out() -> None:
    counts = some(4)
    found = measure(dict.fromkeys(counts, "u"), {"none": {"0": Counts((0, 0))}, "empty": {}, "some": counts})
    assert list(found) == ["some"]
    assert measure({"0": "u"}, {}) == {}


def test_no_prompt_is_an_error() -> None:
    with pytest.raises(UsageError, match="no requests to measure"):
        measure({}, {})
