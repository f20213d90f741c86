"""accept.md and accept.html."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from draftconv.checkpoint.text import code, plain, safe
from draftconv.display import Table
from draftconv.report import plots
from draftconv.report.acceptance import tables
from draftconv.report.acceptance.model import AcceptanceReport, DrafterSummary
from draftconv.report.formatting import SYMBOLS, Decode
from draftconv.report.markdown import section
from draftconv.report.page import template
from draftconv.report.tables import drafters


def markdown(report: AcceptanceReport, decode: Decode | None = None) -> str:
    """The report in Markdown.

    Args:
        decode: token ids to text; ids are shown without it.
    """
    return "\n\n".join(_blocks(report, decode)) + "\n"


def _blocks(report: AcceptanceReport, decode: Decode | None) -> Iterator[str]:
    yield "# Accept length"
    if report.min_al is not None:
        yield f"{SYMBOLS[report.outcome]} **{report.outcome}**: more than {report.min_al:g} is asked for"
    yield from list(section(tables.headline(report)))[1:]
    for drafter in report.drafters:
        yield f"## {plain(drafter.arm)}"
        if lines := [f"- {plain(line)}" for line in tables.sentences(report, drafter)]:
            yield "\n".join(lines)
        for block in _tables(report, drafter, decode):
            yield from section(block, level=3)
    yield from section(drafters(report.arms))
    yield from section(tables.settings(report))
    yield "## Reproduce"
    yield f"```sh\n{code(shlex.join(report.about.command))}\n```"
    yield "`accept.json` has what was accepted from every position, from which every figure above follows."


def _tables(report: AcceptanceReport, drafter: DrafterSummary, decode: Decode | None) -> list[Table]:
    """The tables of one drafter that have something to say."""
    found = [tables.by_depth(report, drafter), tables.by_text(drafter), *tables.speeds(drafter)]
    found += map(tables.speed_by_depth, drafter.speeds if len(drafter.speeds) > 1 else ())
    found.append(tables.prompts(drafter))
    found += [tables.costly(drafter.coverage, decode)] if drafter.coverage else []
    return [block for block in found if block.rows]


@dataclass(frozen=True, slots=True)
class DrafterSection:
    """One drafter on the page.

    Attributes:
        drawing: AL by K; empty where no step was counted.
    """

    drafter: DrafterSummary
    sentences: tuple[str, ...]
    drawing: str
    tables: tuple[Table, ...]


def page(report: AcceptanceReport, decode: Decode | None = None) -> str:
    """The page. Nothing in it that came from a model or a text can act as markup.

    Args:
        decode: token ids to text; ids are shown without it.
    """
    sections = [
        DrafterSection(
            drafter,
            tuple(tables.sentences(report, drafter)),
            plots.accept_length_by_depth(f"lengths-{number}", [part.length for part in drafter.lengths])
            if drafter.lengths
            else "",
            tuple(_tables(report, drafter, decode)),
        )
        for number, drafter in enumerate(report.drafters, 1)
    ]
    return template("acceptance.html.j2").render(
        report=report,
        sections=sections,
        headline=tables.headline(report),
        arms=drafters(report.arms),
        settings=tables.settings(report),
        command=safe(shlex.join(report.about.command)),
    )
