"""A report as Python has it: what its line says, whether it passed, and what it saves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from draftconv.api.parity import exit_code
from draftconv.display import Table
from draftconv.errors import WriteError
from draftconv.reference.accept_length import Counts
from draftconv.report import Report, tables, write_report
from draftconv.report.model import WORST_FIRST, Control
from draftconv.report.verdict import EXACT, EXIT_CODES, Outcome
from tests.report.simulated import make
from tests.test_display import HARMLESS, HOSTILE, Parsed


def report(*outcomes: Outcome, controls: tuple[Control, ...] = ()) -> Report:
    made = make(prompts=4, tokens=16, gate=EXACT, details=False)
    one = made.comparisons[0]
    rows = tuple(replace(one, verdict=replace(one.verdict, outcome=outcome)) for outcome in outcomes)
    return replace(made, comparisons=rows, controls=controls)


def control(*, caught: bool | None, outcome: Outcome | None = None) -> Control:
    return Control("c", "something", 1.5, caught, outcome)


# ── the verdict ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_passed_is_the_exit_code_0(outcome: Outcome) -> None:
    found = report(outcome)
    assert found.outcome == outcome
    assert exit_code(found) == EXIT_CODES[outcome]
    assert found.passed is (outcome in ("pass", "equivalent"))


def test_every_outcome_has_its_place() -> None:
    assert sorted(WORST_FIRST) == sorted(get_args(Outcome))


@pytest.mark.parametrize(
    ("outcomes", "controls", "outcome"),
    [
        (("equivalent", "equivalent"), (), "equivalent"),
        (("equivalent", "pass"), (), "pass"),
        (("pass", "inconclusive"), (), "inconclusive"),
        (("inconclusive", "fail"), (), "fail"),
        (("fail", "void", "pass"), (), "void"),
        (("equivalent",), (control(caught=False),), "fail"),
        (("inconclusive",), (control(caught=False),), "fail"),
        (("fail",), (control(caught=True, outcome="void"),), "void"),
        (("pass",), (control(caught=True, outcome="fail"), control(caught=None)), "pass"),
        ((), (control(caught=True, outcome="inconclusive"),), "pass"),
        ((), (control(caught=False, outcome="pass"),), "fail"),
        ((), (), "pass"),
    ],
)
def test_the_worst_decides(outcomes: tuple[Outcome, ...], controls: tuple[Control, ...], outcome: Outcome) -> None:
    found = report(*outcomes, controls=controls)
    assert (found.outcome, found.passed) == (outcome, exit_code(found) == 0)
    assert exit_code(found) == EXIT_CODES[outcome]


# ── the line ───────────────────────────────────────────────────────────────────────


def test_one_candidate_with_its_ratio_and_interval() -> None:
    found = make(prompts=40, tokens=64, loss=0.08)
    one = found.comparisons[0]
    estimate = one.verdict.estimate
    assert estimate is not None
    low, high = estimate.interval.low, estimate.interval.high
    assert repr(replace(found, controls=())) == (
        f"Report(fail: candidate '{one.candidate}' {estimate.ratio:.4f} [{low:.4f}, {high:.4f}] "
        f"of '{one.reference}', margin 0.02)"
    )


def test_several_candidates_with_their_outcomes() -> None:
    found = report("fail", "pass")
    name, other = found.comparisons[0].candidate, found.comparisons[0].reference
    assert repr(found) == f"Report(fail: 2 candidates of '{other}': '{name}' fail, '{name}' pass)"


def test_what_nothing_was_counted_of() -> None:
    found = make(prompts=4, tokens=0, details=False, gate=EXACT)
    one = found.comparisons[0]
    assert repr(found) == f"Report(void: candidate '{one.candidate}' of '{one.reference}', equal counts)"


def test_controls_that_apply() -> None:
    rows = (control(caught=True), control(caught=None), control(caught=False))
    assert repr(report(controls=rows)) == "Report(fail, 1 of 2 broken drafters noticed)"


def test_names_are_harmless() -> None:
    found = report("pass")
    hostile = replace(found, comparisons=(replace(found.comparisons[0], candidate=HOSTILE),))
    assert repr(hostile).startswith(f"Report(pass: candidate '{HARMLESS[:39]}…' 1.0000")
    parsed = Parsed(hostile._repr_html_())
    assert ("td", HARMLESS) in parsed.texts
    assert not {"script"} & {*parsed.opened}


def test_a_notebook_shows_headline_and_verdict() -> None:
    found = make(prompts=40, tokens=64, loss=0.08)
    texts = Parsed(found._repr_html_()).texts
    assert ("caption", "Accept length") in texts
    assert ("td", "fail") in texts
    assert any(tag == "p" and "loses more than the 2 % allowed" in text for tag, text in texts)


# ── by context ─────────────────────────────────────────────────────────────────────


def test_contexts_are_parts_of_the_whole() -> None:
    """Prompts of 40 to 79 tokens with 64 after them: steps begin at up to 142 known tokens."""
    found = make(prompts=40, tokens=64, loss=0.05)
    (comparison,) = found.comparisons
    assert list(comparison.contexts) == ["32 to 63", "64 to 127", "128 to 255"]
    for arm in found.arms:
        counts = [record.counts for record in found.records if record.arm == arm.name]
        parts = [part for record in found.records if record.arm == arm.name for part in record.contexts.values()]
        assert Counts.pooled(parts) == Counts.pooled(counts)
    first = comparison.contexts["64 to 127"]
    pairs = [
        (record.contexts["64 to 127"], other.contexts["64 to 127"])
        for record, other in zip(found.records[::2], found.records[1::2], strict=True)
    ]
    assert first.clusters == 40
    assert first.reference.value == Counts.pooled(one for one, _ in pairs).accept_length
    assert first.candidate.value == Counts.pooled(other for _, other in pairs).accept_length
    assert first.interval.low < first.ratio < first.interval.high


def test_one_context_alone_is_no_comparison_by_context() -> None:
    (comparison,) = make(prompts=20, tokens=16).comparisons  # 40 to 59 tokens of prompt
    assert list(comparison.contexts) == ["32 to 63", "64 to 127"]
    (comparison,) = make(prompts=4, tokens=8).comparisons
    assert comparison.contexts == {}


def test_contexts_are_shown_where_a_loss_is_allowed_for() -> None:
    def titles(found: Report) -> list[str]:
        return [block.title for block in found.blocks() if isinstance(block, Table)]

    (name,) = (c.candidate for c in make(prompts=40, tokens=64).comparisons)
    assert f"By context, {name}" in titles(make(prompts=40, tokens=64))
    assert f"By context, {name}" not in titles(make(prompts=40, tokens=64, gate=EXACT))
    (table,) = (tables.contexts(c) for c in make(prompts=40, tokens=64, gate=EXACT).comparisons)
    assert [row[0] for row in table.rows] == ["32 to 63", "64 to 127", "128 to 255"]


# ── saved ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [str, Path])
def test_it_saves_what_write_report_writes(kind: type[str | Path], tmp_path: Path) -> None:
    found = make(prompts=4, tokens=16)
    found.save(kind(tmp_path / "saved"))
    write_report(found, tmp_path / "written")
    saved = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    assert saved == {path.name: path.read_bytes() for path in (tmp_path / "written").iterdir()}
    assert len(saved) == 5


def test_it_replaces_a_report_only_when_told(tmp_path: Path) -> None:
    found = make(prompts=4, tokens=64, loss=0.3)
    found.save(tmp_path / "out")
    with pytest.raises(WriteError, match="exists already"):
        found.save(tmp_path / "out")
    before = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    found.save(tmp_path / "out", overwrite=True, decode=lambda tokens: f"word{len(tokens)}")
    after = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("word1" in before, "word1" in after) == (False, True)
