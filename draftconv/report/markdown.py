"""report.md: short enough for the summary of a CI job, in GitHub's Markdown.

Names and tokens come from strangers, so everything that is not written here goes through `plain`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from draftconv.checkpoint.text import code, plain
from draftconv.display import Column, Table
from draftconv.report import tables
from draftconv.report.formatting import SYMBOLS, Decode, arithmetics, passage, sentence, token
from draftconv.report.model import Comparison, Report

PLACES = 5
"""Places of the largest loss that are shown; report.html and report.json have more."""


def markdown(report: Report, decode: Decode | None = None) -> str:
    """The report in Markdown.

    Args:
        decode: token ids to text; ids are shown without it.
    """
    return "\n\n".join(_blocks(report, decode)) + "\n"


def _blocks(report: Report, decode: Decode | None) -> Iterator[str]:
    yield "# Accept-length parity"
    for comparison in report.comparisons:
        yield f"{SYMBOLS[comparison.verdict.outcome]} **{comparison.verdict.outcome}**: {plain(sentence(comparison))}"
    if report.comparisons:
        yield markdown_table(tables.headline(report))
    if lines := [f"- {plain(line)}" for line in arithmetics(report)]:
        yield "\n".join(lines)
    for comparison in report.comparisons:
        yield from _comparison(report, comparison, decode)
    if report.controls:
        yield from section(tables.controls(report))
    for table in (tables.speed(report), tables.accuracy(report)):
        if table.rows:
            yield from section(table)
    yield from section(tables.arms(report))
    yield from section(tables.settings(report))
    yield "## Reproduce"
    yield f"```sh\n{code(shlex.join(report.about.command))}\n```"
    yield "`records.jsonl` has the counts of every request, from which every figure above can be computed again."


def _comparison(report: Report, comparison: Comparison, decode: Decode | None) -> Iterator[str]:
    verdict = comparison.verdict
    yield f"## {plain(comparison.candidate)} against {plain(comparison.reference)}"
    yield "\n".join(f"- {plain(line)}" for line in (*verdict.reasons, *verdict.notes))
    yield from section(tables.categories(comparison), level=3)
    for table in (
        tables.contexts(comparison),
        tables.depths(comparison),
        tables.diagnostics(comparison),
        tables.every_position(comparison),
        tables.attribution(comparison),
        tables.missed(comparison, decode),
    ):
        if table.rows:
            yield from section(table, level=3)
    if comparison.losses and comparison.losses.largest:
        yield from section(_places(comparison, decode), level=3)
    yield from section(tables.sample(report, comparison), level=3)


def _places(comparison: Comparison, decode: Decode | None) -> Table:
    losses = comparison.losses
    largest = losses.largest[:PLACES] if losses else ()
    return Table(
        "Places that cost most",
        "",
        tuple(map(Column, ("request", "after", "the target wrote", comparison.reference, comparison.candidate))),
        tuple(
            (
                place.id,
                passage(decode, place.context[-16:]),
                *(
                    " ".join(token(decode, number) for number in tokens)
                    for tokens in (place.target, place.reference, place.candidate)
                ),
            )
            for place in largest
        ),
    )


def section(table: Table, level: int = 2) -> Iterator[str]:
    """A table under its title, and its note."""
    yield f"{'#' * level} {table.title}"
    yield markdown_table(table)
    if table.note:
        yield table.note


def markdown_table(table: Table) -> str:
    """A table in GitHub's Markdown, its cells made harmless."""
    heads = [plain(column.title) for column in table.columns]
    rules = ["---:" if column.figures else "---" for column in table.columns]
    rows = [heads, rules, *([_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(text: str) -> str:
    return "<br>".join(map(plain, text.splitlines()))
