"""The picture of a report in the docs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import screenshot

from tests.browser import find_browser


def size(picture: bytes) -> tuple[int, int]:
    """Width and height of a PNG."""
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def test_the_docs_show_a_small_picture() -> None:
    picture = screenshot.PICTURE.read_bytes()
    assert size(picture) == (screenshot.WIDTH, screenshot.HEIGHT)
    assert len(picture) <= screenshot.MOST_BYTES
    assert "](images/report.png)" in (screenshot.ROOT / "docs/report.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
def test_it_is_drawn_alike_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = find_browser()
    assert program is not None
    once, twice = tmp_path / "new/once.png", tmp_path / "twice.png"
    screenshot.draw(program, once)
    screenshot.draw(program, twice)
    assert once.read_bytes() == twice.read_bytes()
    assert size(once.read_bytes()) == (screenshot.WIDTH, screenshot.HEIGHT)
    monkeypatch.setattr(screenshot, "MOST_BYTES", 1000)
    with pytest.raises(SystemExit, match="more than 1,000"):
        screenshot.draw(program, tmp_path / "large.png")
    assert not (tmp_path / "large.png").exists()
