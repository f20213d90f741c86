"""junit.xml: verdicts as test cases, for CI that reads nothing else.

| what | passes | failure | error | skipped |
|---|---|---|---|---|
| a comparison | pass, equivalent | fail | inconclusive, void | |
| a category | keeps 95 % | below 95 % | | thin, or the comparison is void |
| a negative control | caught | missed | | does not apply |

Inconclusive is no failure, but a gate that has not been passed must not look green; so it is an
error, as void is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from draftconv.checkpoint.text import safe
from draftconv.report.formatting import arithmetic, change, change_interval, gate_label, length, sentence
from draftconv.report.model import Comparison, Report
from draftconv.report.statistics import Estimate, called
from draftconv.report.verdict import Outcome, category_floor, percent

Result = Literal["passed", "failure", "error", "skipped"]
RESULTS: dict[Outcome, Result] = {
    "pass": "passed",
    "equivalent": "passed",
    "fail": "failure",
    "inconclusive": "error",
    "void": "error",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One test case; `message` is what was found, `text` what else there is to know."""

    group: str
    name: str
    result: Result
    kind: str = ""
    message: str = ""
    text: str = ""


def junit(report: Report) -> str:
    """The report in the dialect of JUnit XML that Jenkins, GitLab and GitHub actions read."""
    cases = [case for comparison in report.comparisons for case in _comparison(comparison)]
    told = {arm.name: arithmetic(arm.name, arm.arithmetic) for arm in report.arms if arm.arithmetic}
    return junit_xml("draftconv parity", [*cases, *_controls(report)], told)


def junit_xml(name: str, cases: Sequence[Case], arithmetics: Mapping[str, str]) -> str:
    """One suite of test cases.

    Args:
        arithmetics: drafter → how it was multiplied.
    """
    totals = {"tests": str(len(cases))}
    for plural, result in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        totals[plural] = str(sum(case.result == result for case in cases))
    root = ElementTree.Element("testsuites", {"name": name, **totals})
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, **totals})
    if arithmetics:
        properties = ElementTree.SubElement(suite, "properties")
        for arm, text in arithmetics.items():
            ElementTree.SubElement(properties, "property", {"name": safe(f"arithmetic of {arm}"), "value": safe(text)})
    for case in cases:
        element = ElementTree.SubElement(suite, "testcase", {"classname": safe(case.group), "name": safe(case.name)})
        if case.result == "passed":
            if case.message:
                ElementTree.SubElement(element, "system-out").text = safe(case.message)
        else:
            about = {"message": safe(case.message)} | ({"type": case.kind} if case.result != "skipped" else {})
            ElementTree.SubElement(element, case.result, about).text = safe(case.text) or None
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _comparison(comparison: Comparison) -> Iterator[Case]:
    verdict = comparison.verdict
    group = f"parity.{comparison.candidate} against {comparison.reference}"
    text = "; ".join((*verdict.reasons, *verdict.notes))
    result = RESULTS[verdict.outcome]
    yield Case(group, gate_label(comparison), result, verdict.outcome, sentence(comparison), text)
    if (margin := verdict.gate.margin) is None:
        return  # equal counts are equal in every category
    floor = category_floor(margin)
    for name, estimate in verdict.categories.items():
        yield _category(group, name, estimate, floor, thin=name in verdict.thin, void=verdict.outcome == "void")


def _category(group: str, category: str, estimate: Estimate, floor: float, *, thin: bool, void: bool) -> Case:
    name = f"category {called(category)} keeps {percent(floor)}"
    detail = (
        f"accept length {length(estimate.reference.value)} became {length(estimate.candidate.value)}: "
        f"{change(estimate.ratio)} ({change_interval(estimate.interval)})"
    )
    if void:
        return Case(group, name, "skipped", message="the measurement is void")
    if thin:
        return Case(group, name, "skipped", message=f"thin: too few prompts to say; {detail}")
    if estimate.interval.high < floor:
        return Case(group, name, "failure", "category", detail)
    return Case(group, name, "passed", message=detail)


def _controls(report: Report) -> Iterator[Case]:
    for control in report.controls:
        name = f"{control.name} is caught"
        if control.caught is None:
            yield Case("parity.controls", name, "skipped", message=control.note or "does not apply to this drafter")
        elif control.outcome == "void":
            yield Case("parity.controls", name, "error", "void", control.note)
        elif control.caught:
            yield Case("parity.controls", name, "passed")
        else:
            yield Case("parity.controls", name, "failure", "control", f"{control.fault}, and the counts are equal")
