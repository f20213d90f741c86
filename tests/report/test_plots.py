"""Drawings that are files of their own."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from draftconv.report.intervals import Interval, Measured
from draftconv.report.plots import UPRIGHT, Spot, bytes_and_ratio, standalone

SVG = "{http://www.w3.org/2000/svg}"
SHARES = (100, 77, 75, 53, 51, 38, 36)


def drawn(count: int = len(SHARES), *, gains: bool = True) -> str:
    shares = SHARES if count == len(SHARES) else [100 - 5.5 * number for number in range(count)]
    ratio = Measured(0.995, Interval(0.99, 1.0))
    spots = [Spot(share, ratio, gain=2 - share / 100 if gains else None) for share in shares]
    return bytes_and_ratio("pareto", spots, 0.01)


def undefined(svg: str) -> set[str]:
    """Variables that are used and that nothing in the file defines."""
    return {name for name in re.findall(r"var\((--[\w-]+)", svg) if f"{name}:" not in svg}


def test_a_saved_file_needs_no_page() -> None:
    inline = drawn()
    assert undefined(inline) >= {"--line", "--muted", "--candidate"}  # what a page has to define
    saved = standalone(inline)
    assert undefined(saved) == set()
    root = ElementTree.fromstring(saved)
    ground = root.find(f"{SVG}rect")
    assert ground is not None
    assert (ground.get("width"), ground.get("height")) == ("100%", "100%")
    drawn_first = [child.tag for child in root if child.tag in (f"{SVG}rect", f"{SVG}g")]
    assert drawn_first[0] == f"{SVG}rect"
    assert standalone(drawn()) == saved


def test_every_colour_of_a_saved_file_has_a_dark_one() -> None:
    style, rest = re.fullmatch(r".*<style>(.*)</style>(.*)", standalone(drawn()), re.DOTALL).groups()  # type: ignore[union-attr]
    assert style.startswith("@media (prefers-color-scheme: dark)")
    used = set(re.findall(r"(?:fill|stroke): #\w+", rest))
    replaced = dict(re.findall(r'"([^"]*)"\] \{ ([^}]*) !important', style))
    assert used <= replaced.keys()
    assert all(light != dark and light.split()[0] == dark.split()[0] for light, dark in replaced.items())
    assert {light.split()[1] for light in used} >= {"#fcfcfb", "#5d6670", "#0a6ebd"}


@pytest.mark.parametrize("count", [len(SHARES), 15])
def test_speed_ups_do_not_overlap(count: int) -> None:
    """Each needs the width of its four figures, or turned their height; 50 % and 53 % lie nearer than that."""
    texts = ElementTree.fromstring(drawn(count)).iter(f"{SVG}text")
    labels = [text.attrib["transform"] for text in texts if re.fullmatch(r"1\.\d\d", text.text or "")]
    assert len(labels) == count
    assert all(("rotate(-90)" in label) == (count > UPRIGHT) for label in labels)
    places = sorted(float(re.split(r"rotate\(-0 |translate\(", label)[1].split()[0]) for label in labels)
    assert min(after - before for before, after in pairwise(places)) > (11 if count > UPRIGHT else 26)


def test_what_is_drawn_is_the_ratio_and_the_loss_that_is_allowed() -> None:
    svg = drawn(gains=False)
    assert "accept length, ratio" in svg
    assert "tokens per step" not in svg
    assert "the loss that was allowed, 0.99" in svg
    assert "estimated speed-up over" not in svg
    assert "stroke-dasharray" in svg
