"""`scripts/prune-law`: its tables say what was measured, and would say so if the law did not hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from prune_law import FIGURE, PAGE, Point, coverage_table, figure, law_table

from draftconv.conversion.pruning.law import LEAST, MOST


def points(factor: float, drafter: str = "a") -> list[Point]:
    """Kept sets of a drafter that is right half of the time, losing `factor` times what they lack."""
    return [Point(drafter, "code", 1000, rows, 2.0, missing, factor * missing / 2, 1 - missing)
            for rows, missing in ((64, 0.4), (128, 0.2), (256, 0.1))]  # fmt: skip


@pytest.mark.parametrize(("factor", "inside"), [(1.1, 3), (LEAST, 3), (MOST, 3), (1.5, 0), (0.7, 0)])
def test_the_factor_is_found_and_counted(factor: float, inside: int) -> None:
    _, _, row, *_ = law_table(points(factor)).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["`a`", "2.000", "3"]
    assert cells[4] == f"{factor:.3f}"
    assert cells[5] == f"{factor:.2f} to {factor:.2f}"
    assert cells[6] == str(inside)


def test_all_drafters_are_added_up() -> None:
    last = law_table([*points(1.0), *points(1.2, "b")]).splitlines()[-1]
    assert last.startswith("| all |  | 6 | 10.0 to 40.0 % | 1.100 | 1.00 to 1.20 | 6 |")


def test_coverage_is_the_first_drafters() -> None:
    text = coverage_table([*points(1.0), *points(1.2, "b")])
    assert len(text.splitlines()) == 5
    assert "| code | 1000 | 64 | 16 | 60.0 % | 60.0 % | 20.0 % | 20.00 % to 25.00 % |" in text


def test_the_figure_is_the_same_for_the_same_points(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        figure([*points(1.0), *points(1.2, "b")], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_the_page_holds_what_was_measured() -> None:
    """Every fixture, and a law that holds for nearly all kept sets."""
    page = PAGE.read_text(encoding="utf-8")
    rows = page.partition("<!-- measured: law -->")[2].partition("<!-- end: law -->")[0].strip().splitlines()[2:]
    assert len(rows) == 6
    whole = [cell.strip() for cell in rows[-1].strip("|").split("|")]
    assert int(whole[6]) > 0.85 * int(whole[2])
    assert LEAST < float(whole[4]) < MOST
    assert FIGURE.is_file()
