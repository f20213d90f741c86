"""Every rule of the verdict, with the smallest input that breaks it and a neighbour that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report.intervals import Interval
from draftconv.report.statistics import Pair
from draftconv.report.verdict import EXACT, EXIT_CODES, GATES, Gate, Outcome, ParityVerdict, judge
from tests.report.counted import counts, pair, pairs

TWO = Gate(0.02)
# With 80 of 100 accepted, one token less costs 1 / 180 = 0.56 % of accept length.


def replayed(sample: list[Pair], gate: Gate = TWO, *, extended: bool = False) -> ParityVerdict:
    return judge(sample, gate, how="replay", extended=extended)


# ── outcomes ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("candidate", "outcome"),
    [
        (80, "equivalent"),
        (77, "equivalent"),  # ratio 177 / 180 = 0.9833, no spread
        (76, "fail"),  # 176 / 180 = 0.9778
        (83, "equivalent"),  # 183 / 180 = 1.0167
        (84, "pass"),  # 1.0222: better by more than the margin
        ((74, 76), "fail"),
        ((72, 82), "inconclusive"),
        ((79, 89), "pass"),
    ],
)
def test_outcomes(candidate: int | tuple[int, ...], outcome: Outcome) -> None:
    assert replayed(pairs(40, candidate)).outcome == outcome


@pytest.mark.parametrize("candidate", [(72, 82), (77, 83), (71, 80), (84, 86), (60, 70)])
def test_outcomes_follow_from_the_interval(candidate: tuple[int, int]) -> None:
    found = replayed(pairs(40, candidate))
    assert found.estimate is not None
    low, high = found.estimate.interval.low, found.estimate.interval.high
    assert (found.outcome in ("pass", "equivalent")) == (low > 0.98)
    assert (found.outcome == "equivalent") == (low > 0.98 and high < 1.02)
    assert (found.outcome == "fail") == (high < 0.98)


def test_exit_codes() -> None:
    assert EXIT_CODES == {"pass": 0, "equivalent": 0, "fail": 1, "inconclusive": 3, "void": 4}
    assert replayed(pairs(40, 76)).exit_code == 1


def test_default_gates() -> None:
    assert {key: gate.margin for key, gate in GATES.items()} == {
        ("conversion", "replay"): None,
        ("conversion", "live"): 0.005,
        ("8-bit", "replay"): 0.01,
        ("8-bit", "live"): 0.01,
        ("4-bit", "replay"): 0.02,
        ("4-bit", "live"): 0.02,
    }


def test_reasons_carry_the_figures() -> None:
    assert replayed(pairs(40, 77)).reasons == ("accept length ratio 0.9833 (0.9833 to 0.9833); the gate is 0.98",)


@pytest.mark.parametrize("margin", [0.0, -0.02, 1.0, 2.0, float("nan")])
def test_a_margin_is_a_share(margin: float) -> None:
    with pytest.raises(UsageError, match="margin"):
        Gate(margin)


# ── too few prompts, and how many more ─────────────────────────────────────────────


@pytest.mark.parametrize("candidate", [80, 60])
def test_thirty_prompts_are_the_fewest(candidate: int) -> None:
    few, enough = replayed(pairs(29, candidate)), replayed(pairs(30, candidate))
    assert few.outcome == "inconclusive"
    assert "29 prompts are too few to judge by, 30 the fewest" in few.reasons
    assert few.more_prompts == 1
    assert few.reasons[-1].startswith("about 1 more prompt would settle it")
    assert enough.outcome == ("equivalent" if candidate == 80 else "fail")
    assert enough.more_prompts is None


def test_turns_are_no_prompts() -> None:
    turns = [replace(p, cluster=f"prompt-{i // 2}") for i, p in enumerate(pairs(58, 80))]
    assert replayed(turns).outcome == "inconclusive"


@pytest.mark.parametrize(("candidate", "outcome"), [((72, 82), "pass"), ((71, 80), "fail")])
def test_how_many_more_prompts(candidate: tuple[int, int], outcome: Outcome) -> None:
    found = replayed(pairs(40, candidate))
    assert (found.outcome, found.exit_code) == ("inconclusive", 3)
    assert found.more_prompts is not None
    assert found.reasons[-1] == (
        f"about {found.more_prompts} more prompts would settle it, as a {outcome} if the ratio stays what it is"
    )
    more = replayed(pairs(40 + found.more_prompts, candidate), extended=True)
    assert more.outcome in (outcome, "equivalent")


def test_on_the_margin_no_prompts_settle_it() -> None:
    edge = Gate(1 / 60)  # 177 / 180, the mean of what follows
    found = replayed(pairs(40, (72, 82)), edge)
    assert (found.outcome, found.more_prompts) == ("inconclusive", None)
    assert found.reasons[-1] == "this cannot be settled by more prompts at this ratio: it sits on the margin"


def test_an_extended_sample_gets_no_further_prompts() -> None:
    found = replayed(pairs(40, (72, 82)), extended=True)
    assert (found.outcome, found.more_prompts) == ("inconclusive", None)
    assert "extended once" in found.reasons[-1]


# ── categories ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("candidate", "outcome"), [(70, "fail"), (71, "pass")])
def test_a_category_fails_the_run_when_all_of_it_is_below(candidate: int, outcome: Outcome) -> None:
    # 170 / 180 = 0.944, 171 / 180 = 0.95 exactly; better prompts elsewhere make up for it
    found = replayed([*pairs(10, candidate, category="code"), *pairs(40, 85, category="prose")])
    assert found.outcome == outcome
    if outcome == "fail":
        assert found.reasons[0] == "category code is below 0.95: ratio 0.9444 (0.9444 to 0.9444)"
        assert found.thin == ()
    else:
        assert found.thin == ("code",)


def test_a_thin_category_is_a_note_and_changes_nothing() -> None:
    wide = [*pairs(4, (62, 90), category="code"), *pairs(60, (79, 81), category="prose")]
    found = replayed(wide)
    assert found.outcome == "equivalent"
    assert found.thin == ("code",)
    assert found.notes[-1].startswith("category code is thin: ratio 0.9778 (")
    assert found.categories["code"].interval.low < 0.95 < found.categories["code"].interval.high


@pytest.mark.parametrize(("candidate", "said"), [(70, "below 0.95"), (71, "thin")])
def test_prompts_without_a_category_are_called_something(candidate: int, said: str) -> None:
    found = replayed([*pairs(10, candidate, category=""), *pairs(40, 85, category="prose")])
    assert any(line.startswith(f"category (none) is {said}: ") for line in (*found.reasons, *found.notes))


def test_a_category_alone_is_the_whole_and_not_told_twice() -> None:
    wide = pairs(4, (62, 90), category="code")
    assert replayed(wide).categories == {}
    assert replayed(wide).thin == ()
    assert "code" in replayed([*wide, *pairs(4, 80, category="prose")]).thin


def test_a_single_prompt_cannot_fail_the_run() -> None:
    found = replayed([*pairs(1, 20, category="code"), *pairs(200, 80, category="prose")])
    assert found.outcome == "equivalent"
    assert found.thin == ("code",)
    assert found.categories["code"].interval == Interval(0.5, 2)


def test_a_wide_margin_is_the_guard_of_categories_too() -> None:
    sample = [*pairs(40, 68, category="code"), *pairs(40, 74, category="prose")]  # 0.933 and 0.967
    assert replayed(sample, Gate(0.10)).outcome == "equivalent"
    assert replayed(sample, Gate(0.06)).outcome == "fail"


def test_methods_that_disagree_are_noted() -> None:
    alone = [replace(p, category=p.id) for p in pairs(40, (78, 82))]
    assert replayed(alone).notes[0].startswith("bootstrap and delta method disagree")
    assert replayed(pairs(40, (78, 82))).notes == ()


# ── exact ──────────────────────────────────────────────────────────────────────────


def test_equal_counts_pass_however_few() -> None:
    found = replayed(pairs(3, 80), EXACT)
    assert (found.outcome, found.exit_code) == ("pass", 0)
    assert found.reasons == ("the counts of all 3 requests are equal",)


@pytest.mark.parametrize(
    "candidate",
    [
        Counts((20, 30, 50)),  # one step accepts a token more
        Counts((21, 31, 49)),  # a step more
        Counts((21, 29, 50)),  # as many steps, as many tokens
    ],
)
def test_any_other_count_fails(candidate: Counts) -> None:
    same = Counts((20, 31, 49))
    sample = [Pair(f"{i}", f"{i}", "all", same, same) for i in range(50)]
    found = replayed([*sample, Pair("odd", "odd", "all", same, candidate)], EXACT)
    assert found.outcome == "fail"
    assert [p.id for p in found.differing] == ["odd"]


def test_the_most_different_are_named_first() -> None:
    sample = [*pairs(9, 80), pair("x", 80, 79), pair("y", 80, 70), pair("z", 80, 81), pair("w", 80, 78)]
    found = replayed(sample, EXACT)
    assert [p.id for p in found.differing] == ["y", "w", "x", "z"]
    assert found.reasons == (
        "4 of 13 requests have other counts, most of all "
        "y: 80 tokens accepted in 100 steps became 70 in 100; "
        "w: 80 tokens accepted in 100 steps became 78 in 100; "
        "x: 80 tokens accepted in 100 steps became 79 in 100",
    )


# ── void ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("gate", [EXACT, TWO])
def test_nothing_was_counted(gate: Gate) -> None:
    nothing = Pair("a", "a", "all", counts(0, 0), counts(0, 0))
    for sample in ([], [nothing]):
        found = replayed(sample, gate)
        assert (found.outcome, found.exit_code, found.estimate) == ("void", 4, None)
        assert found.reasons == ("no verify step was counted",)
    assert replayed([nothing, *pairs(40, 80)], gate).exit_code == 0


@pytest.mark.parametrize("gate", [EXACT, TWO])
@pytest.mark.parametrize(("accepted", "void"), [(29, True), (30, False)])
def test_a_reference_that_is_hardly_ever_right_is_wired_wrongly(accepted: int, void: bool, gate: Gate) -> None:
    found = replayed(pairs(40, accepted, reference=accepted), gate)
    assert (found.outcome == "void") == void
    if void:
        assert "29.0 % of its first drafted tokens" in found.reasons[0]
        assert "not quantization" in found.reasons[0]


def test_a_candidate_that_is_hardly_ever_right_fails() -> None:
    assert replayed(pairs(40, 5)).outcome == "fail"


@pytest.mark.parametrize(("answered", "errors", "void"), [(95, 5, False), (94, 6, True), (38, 2, False), (37, 2, True)])
def test_too_many_requests_failed(answered: int, errors: int, void: bool) -> None:
    found = judge(pairs(answered, 80), TWO, how="replay", errors=errors)
    assert (found.outcome == "void") == void
    if void:
        assert found.reasons == (f"{errors} of {answered + errors} requests failed, more than 5 %",)


@pytest.mark.parametrize(("halves", "void"), [(2, False), (3, True)])
def test_a_request_with_steps_on_one_arm_only_counts_as_failed(halves: int, void: bool) -> None:
    one_armed = [Pair(f"h{i}", f"h{i}", "all", counts(80), counts(0, 0)) for i in range(halves)]
    assert (replayed([*pairs(40, 80), *one_armed]).outcome == "void") == void


def live(aa: list[Pair] | None, gate: Gate = TWO) -> ParityVerdict:
    return judge(pairs(40, 80), gate, how="live", aa=aa)


def test_live_needs_the_reference_twice() -> None:
    assert live(pairs(40, 80)).outcome == "equivalent"
    found = live(None)
    assert found.outcome == "void"
    assert "not run twice" in found.reasons[0]
    assert replayed(pairs(40, 80)).aa is None


@pytest.mark.parametrize(
    ("again", "void"),
    [
        (77, False),  # 0.9833
        (76, True),  # 0.9778
        (83, False),  # 1.0167
        (84, True),  # 1.0222
        ((65, 95), True),  # right on average, too noisy
        ((79, 81), False),
    ],
)
def test_the_noise_must_be_smaller_than_the_margin(again: int | tuple[int, int], void: bool) -> None:
    found = live(pairs(40, again))
    assert (found.outcome == "void") == void
    assert found.aa is not None
    if void:
        assert "differs from itself" in found.reasons[0]


def test_a_second_run_of_the_reference_without_steps_is_void() -> None:
    assert "run twice" in live([Pair("a", "a", "all", counts(80), counts(0, 0))]).reasons[0]


@pytest.mark.parametrize(("how", "gate"), [("replay", TWO), ("replay", EXACT), ("live", EXACT)])
def test_replay_of_the_reference_twice_is_identical(how: str, gate: Gate) -> None:
    def judged(aa: list[Pair]) -> ParityVerdict:
        return judge(pairs(40, 80), gate, how="live" if how == "live" else "replay", aa=aa)

    assert judged(pairs(40, 80)).exit_code == 0
    found = judged([*pairs(39, 80), pair("odd", 80, 81)])
    assert found.outcome == "void"
    assert found.reasons == ("the reference differs from itself in 1 of 40 requests",)


def test_every_reason_for_void_is_given() -> None:
    found = judge(pairs(40, 20, reference=20), TWO, how="live", errors=10)
    assert len(found.reasons) == 3
    assert found.estimate is not None
    assert found.estimate.ratio == 1
