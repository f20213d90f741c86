"""Which K pays: formulas against counts made by hand, and files whose times no server can have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.errors import BadReport
from draftconv.report.acceptance.measure import AcceptLength
from draftconv.report.acceptance.model import AcceptanceReport
from draftconv.report.acceptance.pages import markdown
from draftconv.report.acceptance.speed import SpeedUnderLoad, StepCost, speed
from draftconv.report.acceptance.tables import fastest
from draftconv.report.acceptance.write import FILE, read_acceptance
from draftconv.report.intervals import Interval, Measured
from tests.report.acceptance.made import ABOUT, arm, records


def lengths(*values: float) -> list[AcceptLength]:
    """Accept lengths with K = 1, 2 …, each 10 % wide."""
    return [
        AcceptLength(40, 100, 100, Measured(value, Interval(0.95 * value, 1.05 * value)), (), ()) for value in values
    ]


GIVEN = StepCost(1, 10.0, "given", "1 ms per draft step", each=1.0)
ESTIMATE = StepCost(4, 10.0, "estimate", "2 GB", once=0.5, each=1.0)
MEASURED = StepCost(8, 10.0, "measured", "steps", ((2, 13.0), (4, 14.0)))


# ── the time of a step ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cost", "steps"),
    [
        (GIVEN, [11, 12, 13, 14, 15, 16]),
        (ESTIMATE, [11.5, 12.5, 13.5, 14.5, 15.5, 16.5]),
        (MEASURED, [12.5, 13, 13.5, 14, 14.5, 15]),  # the line through both, before, between and beyond them
        (replace(MEASURED, measured=((2, 13.0),)), [11.5, 13, 14.5, 16, 17.5, 19]),  # through T(0) and the one
        (replace(MEASURED, measured=((5, 11.0), (6, 30.0))), [10, 10, 10, 10, 11, 30]),  # not back in time
        (replace(MEASURED, measured=((1, 11.0), (2, 14.0), (6, 16.0))), [11, 14, 14.5, 15, 15.5, 16]),
    ],
    ids=["given", "estimate", "two measured", "one measured", "a steep line", "three measured"],
)
def test_the_time_of_a_step(cost: StepCost, steps: list[float]) -> None:
    assert [cost.step(k) for k in range(1, 7)] == pytest.approx(steps, rel=1e-12)


@pytest.mark.parametrize("cost", [GIVEN, ESTIMATE, MEASURED, replace(MEASURED, measured=((2, 13.0),))])
def test_a_smaller_drafter_adds_its_share(cost: StepCost) -> None:
    for k in range(1, 7):
        assert cost.shrunk(0.25).step(k) - cost.target == pytest.approx(0.25 * (cost.step(k) - cost.target))


# ── what follows ───────────────────────────────────────────────────────────────────


def test_rates_gains_and_break_even() -> None:
    found = speed(GIVEN, lengths(1.6, 2.0, 2.2))
    assert [row.depth for row in found.depths] == [1, 2, 3]
    assert [row.rate.value for row in found.depths] == pytest.approx([1600 / 11, 2000 / 12, 2200 / 13])
    assert [row.gain.value for row in found.depths] == pytest.approx([16 / 11, 20 / 12, 22 / 13])
    assert [row.break_even for row in found.depths] == pytest.approx([1.1, 1.2, 1.3])
    third = found.depths[2]
    assert (third.rate.interval.low, third.rate.interval.high) == pytest.approx((0.95 * 2200 / 13, 1.05 * 2200 / 13))
    assert found.best == 3
    assert found.near == ()  # 166.7 is 1.5 % below 169.2
    assert found.pays


def test_an_accept_length_at_break_even_gains_nothing() -> None:
    cost = StepCost(1, 8.0, "given", "", each=2.0)
    found = speed(cost, lengths(*(speed(cost, lengths(1, 1, 1)).at(k).break_even for k in (1, 2, 3))))
    assert [row.gain.value for row in found.depths] == pytest.approx([1, 1, 1])
    assert found.best == 1  # the smallest of equals
    assert not found.pays


def test_smaller_ones_that_are_nearly_as_fast_are_named() -> None:
    assert speed(GIVEN, lengths(1.0, 1.98, 2.17, 2.35)).near == (3,)


def test_a_smaller_drafter_drafts_further_and_may_lose_what_it_saves() -> None:
    found = speed(GIVEN, lengths(1.6, 1.9, 2.05, 2.15))
    assert found.best == 2
    assert found.smaller.depth == 4  # 2.15 / 12 is more than 2.05 / 11.5, 1.9 / 11 and 1.6 / 10.5
    assert found.smaller.rate.value == pytest.approx(2150 / 12)
    assert (1 - found.spare) * 1.9 / 11 == pytest.approx(1.9 / 12)  # having lost that, it is as fast as this one


# ── in words ───────────────────────────────────────────────────────────────────────


def said(found: SpeedUnderLoad) -> str:
    return fastest("small", found)


def test_in_words() -> None:
    assert said(speed(GIVEN, lengths(1.6, 1.9, 2.05, 2.15))) == (
        "small, 1 at a time: K = 2 is the fastest: 158.3 tokens/s, 1.58 x as without a drafter. If drafting took half "
        "the time: K = 4, 179.2 tokens/s (+13.16 %); such a drafter may lose 8.33 % of its accept length before it is "
        "slower with K = 2."
    )
    assert "K = 4 is the fastest: 167.9 tokens/s, 1.68 x as without a drafter; K = 3 within 1 % of it." in said(
        speed(GIVEN, lengths(1.0, 1.98, 2.17, 2.35))
    )
    assert " (an estimate, the least that drafting can take: 2 GB)" in said(speed(ESTIMATE, lengths(1.6, 1.9)))
    slow = said(speed(StepCost(1, 1.0, "given", "", each=1.0), lengths(1.2, 1.3)))
    assert "no K pays: the best, 1, gives 0.60 x the speed without a drafter" in slow
    assert "and would break even with an accept length of 2.000." in slow


def made(*costs: StepCost) -> AcceptanceReport:
    return AcceptanceReport.of(ABOUT, 4, None, [arm()], {}, records(), {"drafter": costs})


def titles(report: AcceptanceReport) -> list[str]:
    return [line.lstrip("# ") for line in markdown(report).splitlines() if line.startswith("### Speed")]


def test_one_load_is_shown_whole_and_of_several_the_best_first() -> None:
    assert titles(made(GIVEN)) == ["Speed, 1 at a time"]
    assert titles(made(GIVEN, MEASURED)) == ["Speed, the best K", "Speed, 1 at a time", "Speed, 8 at a time"]
    assert titles(made()) == []
    assert "What drafting costs: 2 GB (draft step an estimate)." in markdown(made(ESTIMATE))


# ── in accept.json ─────────────────────────────────────────────────────────────────


def test_a_report_comes_back(tmp_path: Path) -> None:
    report = made(GIVEN, ESTIMATE, MEASURED)
    report.save(tmp_path / "out")
    assert read_acceptance(tmp_path / "out") == report


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target": 0.0}, "takes a time that no step can take"),
        ({"target": -1.0}, "takes a time that no step can take"),
        ({"each": -1.0}, "takes a time that no step can take"),
        ({"measured": [[3, 9.0]]}, "takes a time that no step can take"),
        ({"measured": [[3, 12.0], [2, 13.0]]}, "takes a time that no step can take"),
        ({"measured": [[0, 12.0]]}, "takes a time that no step can take"),
        ({"concurrency": 0}, "takes a time that no step can take"),
        ({"target": 11.0}, "its figures are not those of its records"),
    ],
)
def test_an_edited_time_is_refused(change: dict[str, object], told: str, tmp_path: Path) -> None:
    made(GIVEN).save(tmp_path / "out")
    file = tmp_path / "out" / FILE
    document = json.loads(file.read_text())
    document["costs"]["drafter"][0] |= change
    file.write_text(json.dumps(document))
    with pytest.raises(BadReport, match=told):
        read_acceptance(file)


def test_times_of_a_drafter_that_is_not_there_are_refused(tmp_path: Path) -> None:
    made(GIVEN).save(tmp_path / "out")
    file = tmp_path / "out" / FILE
    document = json.loads(file.read_text())
    document["costs"]["other"] = document["costs"]["drafter"]
    file.write_text(json.dumps(document))
    with pytest.raises(BadReport, match="knows the steps of other"):
        read_acceptance(file)
