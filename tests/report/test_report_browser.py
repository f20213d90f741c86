"""Every kind of page as a browser draws it: nothing sticks out, all can be read, no network is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Media, Tab, browser, find_browser
from tests.report.gallery import GALLERY, gallery_page

PROGRAM = find_browser()
PROBE = Path(__file__).with_name("probe.js").read_text(encoding="utf-8")
VIEWS: tuple[tuple[int, Media], ...] = (
    (390, "light"),
    (390, "dark"),
    (768, "light"),
    (768, "dark"),
    (1400, "light"),
    (1400, "dark"),
    (718, "print"),  # A4 between margins of 1 cm
    (816, "print"),  # Letter without any
)
TALL = 4000
"""Pixels of the window's height: the fewer windows a page fills, the sooner its colours are known."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium, chromium-browser or google-chrome on the PATH"),
]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as found:
        yield found


def faults(tab: Tab, width: int, media: Media) -> list[str]:
    """What is wrong with the page that is open; where things lie is the same in the dark."""
    tab.show(width, media, TALL)
    found: list[str] = tab.evaluate(f"({PROBE})({json.dumps(media == 'dark')})")
    return found


@pytest.mark.parametrize("kind", GALLERY)
def test_a_page_is_drawn_well(kind: str, tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(gallery_page(kind), encoding="utf-8")
    assert tab.open(path) == [path.as_uri()]
    assert {view: found for view in VIEWS if (found := faults(tab, *view))} == {}


SHELL = """<!DOCTYPE html><html><head><style>
body {{ margin: 0; color: #222; background: #fff }} .wide {{ overflow-x: auto }} .in {{ width: 200px }}
.in {{ position: relative }} .in span {{ position: absolute; white-space: nowrap }}
.strip {{ width: 200px; overflow: visible }}
</style></head><body>{}</body></html>"""


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ('<div style="position: absolute; left: -119%; width: 9px">x</div>', "outside the window: <div> x"),
        ('<table style="width: 2000px"><tr><td>x</table>', "the page is 2000 wide, the window 390"),
        (
            '<div class="wide"><table style="width: 2000px"><tr><td>x</table></div>',
            'scrolls, but could be narrower: <div class="wide"> x',
        ),
        (
            '<div class="wide"><div style="width: 2000px"><div style="height: 9px"></div></div></div>',
            'scrolls, but could be narrower: <div class="wide"> ',
        ),
        (
            '<div class="wide"><div style="width: 900px; text-align: right"><b class="badge">fail</b></div></div>',
            'a verdict is out of sight: <b class="badge"> fail',
        ),
        ('<p style="width: 40px; white-space: nowrap">far too wide</p>', "text outside its box: <p> far too wide"),
        ('<div style="width: 40px; overflow: hidden; white-space: nowrap">far too wide</div>', "cut off: <div>"),
        ('<div style="width: 40px"><p style="width: 90px">x</p></div>', "outside its box: <p> x"),
        ('<p style="color: #ccc">x</p>', "contrast 1.61: <p> x"),
        ('<p style="color: #fff; background: #bbb">x</p>', "contrast 1.92: <p> x"),
        ('<p style="color: rgba(0, 0, 0, .3)">x</p>', "contrast 2.11: <p> x"),
        (
            '<svg width="90" height="30"><rect width="90" height="30" fill="#555"/><text x="9" y="20">x</text></svg>',
            "contrast 2.82: <text> x",
        ),
        (
            '<svg class="strip" aria-label="all"><line x1="-119%" x2="20%" y1="5" y2="5" stroke="red"/></svg>',
            "x1 of a mark is -119%: all",
        ),
        (
            '<svg class="strip" aria-label="all"><circle cx="99%" cy="9" r="9"/></svg>',
            "a mark lies outside its strip: all",
        ),
        (
            '<div class="axis in"><span>-1.0</span><span style="left: 9px">-0.5</span></div>',
            "labels overlap: -1.0 | -0.5",
        ),
    ],
)
def test_a_page_that_is_drawn_badly_is_noticed(broken: str, fault: str, tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(SHELL.format(broken), encoding="utf-8")
    tab.open(path)
    assert [found for found in faults(tab, 390, "light") if found.startswith(fault)]


def test_what_scrolls_on_a_screen_is_cut_off_on_paper(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(SHELL.format(f'<div class="wide"><table><tr><td>{"x" * 200}</table></div>'), encoding="utf-8")
    tab.open(path)
    assert faults(tab, 390, "light") == []
    assert faults(tab, 390, "print")[0].startswith("cut off on paper: ")


def test_what_a_page_asks_of_a_network_is_noticed(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(SHELL.format('<img src="other.png">'), encoding="utf-8")
    assert tab.open(path) == [path.as_uri(), (tmp_path / "other.png").as_uri()]
