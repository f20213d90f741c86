"""What a report says of each drafter: slices, the map's losses, prompts at both ends, and the gate."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from draftconv.errors import UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report.acceptance.measure import AcceptLength, measure
from draftconv.report.acceptance.model import (
    LEAST_STEPS,
    SHOWN,
    AcceptanceReport,
    CostlyToken,
    DrafterSummary,
    PromptLength,
    judge_length,
    summarize,
)
from draftconv.report.acceptance.records import AcceptanceRecord
from draftconv.report.intervals import Interval, Measured
from draftconv.report.verdict import Outcome
from tests.report.acceptance.made import ABOUT, ONE, arm, record, records, report


def only(*made: AcceptanceRecord, depth: int = 3, longest: int = 4, rows: int | None = None) -> DrafterSummary:
    return summarize("drafter", made, depth, longest, None, rows)


# ── slices ─────────────────────────────────────────────────────────────────────────


def test_every_k_is_measured() -> None:
    made = list(records(prompts=8))
    found = only(*made)
    category_of = {one.cluster: one.category for one in made}
    for k, measured in enumerate(found.lengths, 1):
        alone = measure(category_of, {k: {one.cluster: one.counts(k) for one in made}})
        assert measured == alone[k]
    assert len(found.lengths) == 4
    assert found.whole == found.lengths[2]
    assert [part.length.value for part in found.lengths] == sorted(part.length.value for part in found.lengths)


def test_turns_of_a_prompt_are_one() -> None:
    found = only(replace(ONE, id="a/1"), replace(ONE, id="a/2"))
    assert found.whole is not None
    assert (found.whole.prompts, found.whole.steps, found.whole.accepted) == (1, 6, 12)


@pytest.mark.parametrize(("kind", "names"), [("categories", ["coding", "writing"]), ("languages", ["de", "en"])])
def test_kinds_of_text_are_slices_of_all_steps(kind: str, names: list[str]) -> None:
    made = list(records(prompts=12))
    found = only(*made)
    slices: dict[str, AcceptLength] = getattr(found, kind)
    assert list(slices) == names
    attribute = {"categories": "category", "languages": "language"}[kind]
    for name, measured in slices.items():
        mine = Counts.pooled(one.counts(3) for one in made if getattr(one, attribute) == name)
        assert (measured.steps, measured.accepted, measured.prompts) == (mine.steps, mine.accepted, 6)
        assert measured.length.value == pytest.approx(mine.accept_length, abs=1e-12)


def test_contexts_by_hand() -> None:
    """Prompts of 3 and 14 tokens: steps begin with 4, 7 and 9 known tokens, and with 15, 18 and 20."""
    other = replace(ONE, id="b", cluster="b", prompt=14)
    found = only(ONE, other).contexts
    assert {name: (part.prompts, part.steps, part.accepted) for name, part in found.items()} == {
        "4 to 7": (1, 2, 3),
        "8 to 15": (2, 2, 5),
        "16 to 31": (1, 2, 4),
    }
    assert list(found) == ["4 to 7", "8 to 15", "16 to 31"]  # by length, not by name
    assert found["4 to 7"].length == Measured(2.5, Interval(1.0, 4.0))  # a resample may lack that prompt


@pytest.mark.parametrize(("known", "name"), [(2, "2 to 3"), (3, "2 to 3"), (4, "4 to 7"), (1024, "1024 to 2047")])
def test_contexts_are_powers_of_two(known: int, name: str) -> None:
    assert list(only(record("a", [1], prompt=known - 1)).contexts) == [name]


# ── the vocabulary map ─────────────────────────────────────────────────────────────


def test_what_a_map_costs_by_hand() -> None:
    """K = 3: steps (0, 3), (4, 3) and none lost; with token 3 gone (0, 3), (4, 3); with 1 and 5 gone three lose."""
    made = replace(ONE, unmapped=((1, 7), (5, 9), (8, 7)))
    found = only(made, rows=30)
    assert list(made.perfect_steps(3)) == [(0, 1, 7), (2, 3, None), (6, 2, 7)]
    coverage = found.coverage
    assert coverage is not None
    assert (coverage.rows, coverage.tokens, coverage.undraftable) == (30, 7, 2)
    assert coverage.perfect.length.value == 1 + 6 / 3
    assert coverage.costly == (CostlyToken(7, 1, 3), CostlyToken(9, 1, 0))


def test_the_most_costly_tokens_are_kept() -> None:
    made = list(records(prompts=30, reduced=True))
    coverage = only(*made, rows=30).coverage
    assert coverage is not None
    lost: dict[int, int] = defaultdict(int)
    for one in made:
        for _, count, token in one.perfect_steps(3):
            if token is not None:
                lost[token] += 3 - count
    assert len(lost) > 2 * SHOWN
    assert [row.lost for row in coverage.costly] == sorted(lost.values(), reverse=True)[: 2 * SHOWN]
    assert {row.token: row.lost for row in coverage.costly}.items() <= lost.items()


def test_a_drafter_of_every_token_has_no_coverage() -> None:
    assert only(ONE).coverage is None


# ── prompts at both ends ───────────────────────────────────────────────────────────


def test_prompts_at_both_ends_by_hand() -> None:
    made = [record(f"p{n}", ([0] * (12 - n) + [3] * n)[::-1], category="prose") for n in range(7)]
    made.append(record("short", [0] * (LEAST_STEPS - 1)))
    found = only(*made)
    lengths = {one.id: one.counts(3) for one in made}
    enough = sorted((name for name, c in lengths.items() if c.steps >= LEAST_STEPS),
                    key=lambda name: (lengths[name].accept_length, name))  # fmt: skip
    assert "short" not in enough
    assert 0 < len(enough) < len(made)
    rows = [PromptLength(name, "prose", lengths[name].steps, lengths[name].accept_length) for name in enough]
    assert list(found.worst) == rows[:SHOWN]
    assert list(found.best) == rows[::-1][:SHOWN]
    assert found.worst[0].id == "p0"


# ── the gate ───────────────────────────────────────────────────────────────────────


def measured(low: float, high: float, *, prompts: int = 40, first: float = 0.7) -> AcceptLength:
    rate = Measured(first, Interval(0.0, 1.0))
    return AcceptLength(prompts, 100, 100, Measured((low + high) / 2, Interval(low, high)), (rate,), (rate,))


@pytest.mark.parametrize(
    ("whole", "min_al", "outcome", "said"),
    [
        (None, None, "void", ["no verify step was counted"]),
        (None, 2.0, "void", ["no verify step was counted"]),
        (measured(2.1, 2.5), None, "pass", []),
        (measured(2.1, 2.5), 2.0, "pass", ["accept length 2.300 (2.100 to 2.500), more than 2 is asked for"]),
        (measured(2.1, 2.5), 2.1, "inconclusive", ["accept length 2.300"]),
        (measured(2.1, 2.5), 2.4, "inconclusive", ["accept length 2.300"]),
        (measured(2.1, 2.5), 2.5, "inconclusive", ["accept length 2.300"]),
        (measured(2.1, 2.5), 2.6, "fail", ["accept length 2.300"]),
        (measured(2.1, 2.5, prompts=29), 2.0, "inconclusive", ["accept", "29 prompts are too few to judge by, 30"]),
        (measured(2.1, 2.5, prompts=29), 2.6, "inconclusive", ["accept", "29 prompts are too few to judge by, 30"]),
        (measured(2.1, 2.5, prompts=30), 2.0, "pass", ["accept"]),
        (measured(1.0, 1.1, first=0.01), None, "pass", ["1.0 % of its first drafted tokens are accepted, less than"]),
        (measured(1.0, 1.1, first=0.01), 2.0, "fail", ["accept", "1.0 % of its first drafted tokens"]),
    ],
)
def test_the_gate(whole: AcceptLength | None, min_al: float | None, outcome: Outcome, said: list[str]) -> None:
    found, reasons = judge_length(whole, min_al)
    assert found == outcome
    assert len(reasons) == len(said)
    assert all(reason.startswith(start) for reason, start in zip(reasons, said, strict=True))


@pytest.mark.parametrize(
    ("min_al", "outcome", "passed"), [(None, "pass", True), (1.2, "pass", True), (3.9, "fail", False)]
)
def test_a_report_has_the_worst_of_its_drafters(min_al: float | None, outcome: Outcome, passed: bool) -> None:
    found = report("one", "two", min_al=min_al)
    assert (found.outcome, found.passed) == (outcome, passed)


def test_one_bad_drafter_fails_them_all() -> None:
    good, bad = list(records("good", right=0.9)), list(records("bad", right=0.2))
    made = AcceptanceReport.of(ABOUT, 4, 2.0, [arm("good"), arm("bad")], {}, [*good, *bad])
    assert [drafter.outcome for drafter in made.drafters] == ["pass", "fail"]
    assert made.outcome == "fail"
    assert "fail: AL above 2 asked for" in list(made.brief())


# ── nothing to measure ─────────────────────────────────────────────────────────────


def test_texts_of_one_token_have_no_step() -> None:
    found = only(record("a", []), record("b", []))
    assert (found.whole, found.outcome, found.lengths) == (None, "void", ())
    made = AcceptanceReport.of(ABOUT, 4, None, [arm()], {}, [record("a", [])])
    assert (made.outcome, made.passed) == ("void", False)
    assert list(made.brief()) == ["'drafter': no step", "K = 3"]


def test_no_record_is_an_error() -> None:
    with pytest.raises(UsageError, match="no requests to measure"):
        only()


def test_a_prompt_in_two_categories_is_refused() -> None:
    with pytest.raises(UsageError, match="prompt a is in two categories, prose and code"):
        only(ONE, replace(ONE, id="a/1", category="code"))
