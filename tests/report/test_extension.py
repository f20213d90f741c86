"""An inconclusive sample is extended once, by other prompts, with everything else as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftconv.errors import UsageError
from draftconv.report.extension import Earlier, ExtensionTerms, Sample, extend
from draftconv.report.merge_extension import announce_extension
from draftconv.report.verdict import EXACT, Gate, Outcome, judge
from tests.report.counted import pairs
from tests.report.simulated import make

TERMS = ExtensionTerms("ref@1", "cand@1", "target@1", depth=1, gate=Gate(0.02), how="replay")


def sample(number: int, start: int, *, prefix: str = "") -> Sample:
    rows = tuple(pairs(number, (72, 84), start=start))
    return Sample(TERMS, rows, {row.id: f"{prefix}{row.id}-hash" for row in rows})


OLD = Earlier(sample(40, 0), "inconclusive", extended=False)
NEW = sample(60, 40)


def test_both_are_judged_as_one() -> None:
    both = extend(OLD, NEW)
    assert both.pairs == (*OLD.sample.pairs, *NEW.pairs)
    assert set(both.tokens) == {*OLD.sample.tokens, *NEW.tokens}
    assert both.aa is None
    assert judge(OLD.sample.pairs, TERMS.gate, how="replay").outcome == "inconclusive"
    found = judge(both.pairs, TERMS.gate, how="replay", extended=True)
    assert found == judge(pairs(100, (72, 84)), TERMS.gate, how="replay", extended=True)


def test_errors_and_second_runs_of_the_reference_add_up() -> None:
    aa = tuple(pairs(40, 80)), tuple(pairs(60, 80, start=40))
    old = replace(OLD, sample=replace(OLD.sample, aa=aa[0], errors=1))
    assert extend(old, replace(NEW, aa=aa[1], errors=2)).aa == (*aa[0], *aa[1])
    assert extend(old, replace(NEW, aa=aa[1], errors=2)).errors == 3
    assert extend(old, NEW).aa is None


def test_a_second_extension_is_refused() -> None:
    with pytest.raises(UsageError, match="extended before"):
        extend(replace(OLD, extended=True), NEW)


@pytest.mark.parametrize("outcome", ["pass", "equivalent", "fail", "void"])
def test_only_an_inconclusive_report_is_extended(outcome: Outcome) -> None:
    with pytest.raises(UsageError, match=f"is {outcome}, not inconclusive"):
        extend(replace(OLD, outcome=outcome), NEW)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"reference": "ref@2"}, "the report has reference ref@1, this run has ref@2"),
        ({"candidate": "cand@2"}, "candidate cand@1"),
        ({"target": "target@2"}, "target target@1"),
        ({"depth": 3}, "depth 1, this run has 3"),
        ({"gate": Gate(0.01)}, "gate a loss below 2 %, this run has a loss below 1 %"),
        ({"gate": EXACT}, "this run has equal counts"),
        ({"how": "live"}, "how replay, this run has live"),
    ],
)
def test_nothing_else_may_change(other: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        extend(OLD, replace(NEW, terms=replace(TERMS, **other)))  # type: ignore[arg-type]


def test_the_same_request_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="request all-38 is in the report already, and 1 more are"):
        extend(OLD, sample(60, 38, prefix="other-"))


def test_the_same_prompt_under_another_request_is_refused() -> None:
    rows = (replace(NEW.pairs[0], cluster="all-7"), *NEW.pairs[1:])
    with pytest.raises(UsageError, match="prompt all-7 is in the report already"):
        extend(OLD, replace(NEW, pairs=rows))


def test_the_same_text_under_another_name_is_refused() -> None:
    tokens = {**NEW.tokens, "all-50": OLD.sample.tokens["all-3"]}
    with pytest.raises(UsageError, match="the text of request all-50 is in the report already"):
        extend(OLD, replace(NEW, tokens=tokens))


# ── told before anything is measured ───────────────────────────────────────────────


@pytest.mark.parametrize("role", ["reference", "candidate"])
def test_another_drafter_is_refused_whatever_its_name(role: str) -> None:
    report = make(prompts=32, tokens=64, loss=0.025)
    (comparison,) = report.comparisons
    arms = {"reference": report.arm(comparison.reference), "candidate": report.arm(comparison.candidate)}
    told: list[str] = []
    renamed = {name: replace(arm, name=f"other {arm.name}") for name, arm in arms.items()}
    announce_extension(report, **renamed, announce=told.append)
    assert [line.partition(": reference ")[0] for line in told] == ["the report that is extended", "added to it"]
    arms[role] = replace(arms[role], content="0" * 64)
    with pytest.raises(UsageError, match=rf"the {role} of the report is .*, this run's is .*, under the same name"):
        announce_extension(report, **arms, announce=told.append)
    assert len(told) == 2
