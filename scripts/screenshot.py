"""Draw docs/images/report.png: the top of a parity report, as a browser shows it.

    scripts/screenshot            write it
    scripts/screenshot --out FILE elsewhere

The counts are those of a simulated run, and the page says so. The picture is the same wherever the browser and the
fonts are; it is drawn again when the page looks different.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from draftconv.report import Report
from draftconv.report.page import page
from tests.browser import browser, find_browser
from tests.report.simulated import decode, make

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/images/report.png"
WIDTH, HEIGHT = 1400, 940
"""CSS pixels: the verdict, its interval and the categories."""
MOST_BYTES = 150_000


def simulated() -> Report:
    """A quantized drafter that loses a little."""
    made = make(prompts=160, tokens=128, loss=0.006, categories=("coding", "maths", "reasoning", "roleplay", "writing"))
    return replace(made, about=replace(made.about, target="a simulated target", prompts="simulated"))


def draw(program: str, out: Path) -> None:
    """Write the picture.

    Raises:
        SystemExit: it is too large for a page that people read.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        path = Path(temporary) / "report.html"
        path.write_text(page(simulated(), decode), encoding="utf-8")
        with browser(program, Path(temporary)) as tab:
            tab.show(WIDTH, "light")
            tab.open(path)
            picture = tab.screenshot(WIDTH, HEIGHT)
    if len(picture) > MOST_BYTES:
        raise SystemExit(f"the picture has {len(picture):,} bytes, more than {MOST_BYTES:,}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PICTURE, help="where the picture goes")
    options = parser.parse_args()
    if (program := find_browser()) is None:
        sys.exit("no chromium, chromium-browser or google-chrome on the PATH: install one")
    draw(program, options.out)


if __name__ == "__main__":
    main()
