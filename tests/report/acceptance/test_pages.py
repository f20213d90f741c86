"""accept.html, accept.md and junit.xml: the figures of the report, and nothing that a stranger wrote can act."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from xml.etree import ElementTree

import pytest

from draftconv.report.acceptance.model import AcceptanceReport
from draftconv.report.acceptance.pages import markdown, page
from draftconv.report.acceptance.write import junit
from draftconv.report.formatting import length, share
from tests.report.acceptance.made import renamed, report
from tests.report.simulated import decode
from tests.report.test_report_pages import HOSTILE, Parsed


@cache
def made(case: str) -> AcceptanceReport:
    match case:
        case "one":
            return report()
        case "reduced":
            return report("reduced", mapped={"reduced": 32000})
        case "gated":
            return report("one", "two", min_al=2.0, mapped={"two": 30})
        case "failed":
            return report(min_al=3.9)
        case _:
            return report(prompts=2, roots=0)


CASES = ("one", "reduced", "gated", "failed", "nothing")


@cache
def parsed(case: str) -> Parsed:
    return Parsed(page(made(case), decode))


@pytest.mark.parametrize("case", CASES)
def test_a_page_stands_alone(case: str) -> None:
    found = parsed(case)
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not {"script", "img", "link", "iframe", "object", "form", "base"} & {tag for tag, _ in found.elements}
    for tag, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith("#"), tag
    policy = next(a["content"] for t, a in found.elements if t == "meta" and "http-equiv" in a)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.mark.parametrize("case", CASES)
def test_drawings_speak_to_those_who_cannot_see_them(case: str) -> None:
    ids = {attributes.get("id") for _, attributes in parsed(case).elements}
    drawings = [attributes for tag, attributes in parsed(case).elements if tag == "svg"]
    assert len(drawings) == sum(drafter.whole is not None for drafter in made(case).drafters)
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert attributes.get("aria-label") or set(str(attributes["aria-labelledby"]).split()) <= ids


@pytest.mark.parametrize("case", CASES[:-1])
def test_page_and_summary_have_the_figures(case: str) -> None:
    text, summary = parsed(case).text, markdown(made(case), decode)
    for drafter in made(case).drafters:
        assert drafter.whole is not None
        for k, part in enumerate(drafter.lengths, 1):
            low, high = part.length.interval.low, part.length.interval.high
            row = [str(k), length(part.length.value), f"{length(low)} to {length(high)}"]
            assert " ".join(row) in text
            assert f"| {' | '.join(row)} |" in summary
        for kind, slices in (
            ("category", drafter.categories),
            ("language", drafter.languages),
            ("tokens of context", drafter.contexts),
        ):
            for name, part in slices.items():
                assert f"| {name} | {kind} | {length(part.length.value)} |" in summary
                assert f"{name} {kind} {length(part.length.value)}" in text
        for j, rate in enumerate(drafter.whole.conditional):
            assert rate is not None
            assert f"{share(drafter.whole.reached[j].value)} " in text
            assert f"| {share(rate.value)} |" in summary
        ends = [*((row, "worst") for row in drafter.worst), *((row, "best") for row in drafter.best)]
        for prompt, end in ends:
            assert f"| {prompt.id} | {end} | {prompt.category} | {length(prompt.length)} | {prompt.steps} |" in summary
        if drafter.coverage:
            lost = drafter.coverage.costly[0]
            assert f"| {lost.token} | {lost.places} | {lost.lost} |" in summary
            assert f"can draft {drafter.coverage.rows} tokens" in text


def test_a_report_without_a_step_says_so() -> None:
    assert "no verify step was counted" in parsed("nothing").text
    assert "no verify step was counted" in markdown(made("nothing"))


def test_the_gate_is_said() -> None:
    assert "✗ **fail**: more than 3.9 is asked for" in markdown(made("failed"))
    assert "more than 3.9 is asked for" in parsed("failed").text
    assert "asked for" not in parsed("one").text


@pytest.mark.parametrize("case", CASES)
def test_summary_tables_are_rectangular(case: str) -> None:
    for block in markdown(made(case), decode).split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") - line.count("\\|") for line in block.splitlines()}) == 1, block


# ── hostile text ───────────────────────────────────────────────────────────────────


def evil(_: Sequence[int]) -> str:
    return HOSTILE


@cache
def hostile() -> AcceptanceReport:
    return renamed(HOSTILE)


def test_hostile_text_is_inert_on_the_page() -> None:
    text = page(hostile(), evil)
    found = Parsed(text)
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in parsed("gated").elements}
    assert "<script>alert(1)</script>" in found.text
    assert all(c.isprintable() or c in "\n\N{NO-BREAK SPACE}" for c in text)


def test_hostile_text_is_inert_in_the_summary() -> None:
    summary = markdown(hostile(), evil)
    assert all(c.isprintable() or c == "\n" for c in summary)
    prose = re.sub(r"```sh\n.*?\n```", "", summary, flags=re.DOTALL)
    assert "<script" not in prose
    assert "<img" not in prose
    assert not re.search(r"(?<!\\)\[a|://", prose)
    assert [line for line in summary.splitlines() if line.startswith("# ")] == ["# Accept length"]


def test_hostile_text_is_inert_in_junit() -> None:
    root = ElementTree.fromstring(junit(hostile()))
    assert {element.tag for element in root.iter()} <= {
        "testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out", "properties", "property"
    }  # fmt: skip
    assert all(c.isprintable() or c == "\n" for c in junit(hostile()))
