"""Which rules the committed tables observe: none is left without a word, and evidence is what the tables say it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import engine_truth
import pytest
from truth.observed import UNKNOWABLE, faults, observed
from truth.table import Row, Truth, load

from draftconv.engines import ENGINES
from draftconv.engines.rules import Effect, Evidence, Rule

JUDGED = ("vllm", "sglang")


def committed(engine: str) -> Truth:
    return load(engine_truth.ROOT / "docs" / "engine-truth" / f"{engine}.json")


@pytest.mark.parametrize("engine", JUDGED)
def test_every_rule_is_observed_or_has_a_reason_and_its_evidence_says_so(engine: str) -> None:
    assert faults(ENGINES[engine].rules, committed(engine).rows, UNKNOWABLE[engine]) == []


@pytest.mark.parametrize("engine", JUDGED)
def test_without_its_cases_every_rule_is_missed(engine: str) -> None:
    """The table is not what it takes: with the rows of one rule gone, that rule is told."""
    truth, rules = committed(engine), ENGINES[engine].rules
    for code in observed(truth.rows, rules):
        rows = [row for row in truth.rows if code not in row.rules]
        assert f"no case observes {code}" in faults(rules, rows, UNKNOWABLE[engine])


def rule(code: str, effect: Effect, evidence: Evidence = "run") -> Rule:
    return Rule(code, effect, "it does", "file.py, 1.0", evidence, lambda _: None)


RULES = (
    rule("e-stop", "refused"),
    rule("e-other-stop", "refused"),
    rule("e-wrong", "mis-read"),
    rule("e-note", "note"),
)
STOPS = Row("loader", "a", "refused", "refused", True, "", ("e-stop",))
STOPS_OTHERWISE = Row("loader", "b", "refused", "refused", True, "", ("e-other-stop", "e-stop"))
WRONG = Row("loader", "c", "mis-read: weights", "mis-read: weights", True, "", ("e-wrong",))
NOTED = Row("loader", "d", "loads", "loads", True, "", ("e-note",))
ALL = (STOPS, STOPS_OTHERWISE, WRONG, NOTED)


class TestObserved:
    def test_what_decides_is_observed(self) -> None:
        assert observed(ALL, RULES) == {"e-stop", "e-other-stop", "e-wrong", "e-note"}

    @pytest.mark.parametrize(
        "row",
        [
            replace(STOPS, agrees=False),
            replace(STOPS, predicted="loads", observed="loads"),  # it stayed silent
            replace(WRONG, predicted="refused", observed="refused"),  # something else stopped the engine before
            replace(WRONG, predicted="loads", observed="loads"),
        ],
    )
    def test_what_does_not_decide_is_not(self, row: Row) -> None:
        assert observed([row], RULES) == frozenset()

    def test_of_several_refusals_the_first_is_the_reason(self) -> None:
        assert observed([STOPS_OTHERWISE], RULES) == {"e-other-stop"}


@pytest.mark.parametrize(
    ("rules", "rows", "unknowable", "line"),
    [
        (RULES, ALL, {"e-gone": "why"}, "e-gone is no rule"),
        (RULES, ALL, {"e-stop": "why"}, "e-stop is said to be unknowable, and a case observes it"),
        (RULES, ALL[1:], {}, "no case observes e-stop"),
        ((*RULES, rule("e-read", "note", "read")), ALL, {}, "no case observes e-read"),
        ((rule("e-stop", "refused", "read"), *RULES[1:]), ALL, {}, "e-stop is observed, and its evidence read"),
        (RULES, ALL[1:], {"e-stop": "why"}, "e-stop is not observed, and its evidence run"),
    ],
)
def test_each_fault_is_told(
    rules: tuple[Rule, ...], rows: tuple[Row, ...], unknowable: Mapping[str, str], line: str
) -> None:
    assert faults(RULES, ALL, {}) == []
    assert line in faults(rules, rows, unknowable)


def test_every_word_is_shown() -> None:
    for engine in JUDGED:
        page = Path(engine_truth.ROOT / "docs" / "engine-truth" / f"{engine}.md").read_text(encoding="utf-8")
        for code, why in UNKNOWABLE[engine].items():
            assert f"| `{code}` | {why} |" in page
