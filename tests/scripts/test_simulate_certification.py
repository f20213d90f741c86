"""What is said of simulated certificates follows from their table."""

from __future__ import annotations

import re

import simulate_certification as simulation
from simulate_certification import Cell, told

ROW = re.compile(r"\| `([\w.-]+)` \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d.]+) % \|")


def on_the_page() -> tuple[list[Cell], str]:
    """The rows of docs/slim.md, and its marked part."""
    found = simulation.PART.search(simulation.PAGE.read_text(encoding="utf-8"))
    assert found is not None
    rows = ROW.findall(found[0])
    cells = [
        Cell(name, int(k), int(n), int(samples.replace(",", "")), float(wrong) / 100)
        for name, k, n, samples, wrong in rows
    ]
    return cells, found[0]


def test_the_page_says_what_its_rows_show() -> None:
    cells, part = on_the_page()
    assert len(cells) == 30
    written = f"{simulation.table(cells)}\n\n{told(cells)}"
    assert part == f"<!-- simulated: certificates -->\n\n{written}\n\n<!-- end: certificates -->"


def test_rows_beyond_chance_are_told() -> None:
    cells = [Cell("a", 1, 40, 4000, 0.071), Cell("b", 3, 160, 4000, 0.052), Cell("c", 5, 160, 4000, 0.04)]
    assert told(cells) == (
        "4,000 samples leave ± 0.7 points. Above 5 % lie 2 of 3 rows, 1 of them by more than that; the largest, 7.1 %, "
        "is `a` with 1 candidate and 40 prompts."
    )
