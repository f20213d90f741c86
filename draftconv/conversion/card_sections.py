"""The two places of a model card that are filled when it is published, each between marks of its own."""

from __future__ import annotations

import re
from typing import NamedTuple

from draftconv.conversion.front_matter import FENCED
from draftconv.errors import CheckFailed


class Marks(NamedTuple):
    """The lines around what draftconv may replace."""

    start: str
    end: str

    def around(self, text: str) -> str:
        """The marks with a text between them, which ends its last line."""
        return f"{self.start}\n{text}{self.end}"

    def filled(self, card: str, text: str) -> str | None:
        """The card with what is between the marks replaced; None where they are not there once, in this order."""
        lines = [re.escape(mark) + r"[ \t]*\r?$" for mark in self]
        found = [list(re.finditer(f"^{line}", card, re.MULTILINE)) for line in lines]
        if [len(places) for places in found] != [1, 1] or found[0][0].end() > found[1][0].start():
            return None
        (start,), (end,) = found
        return f"{card[: start.start()]}{self.around(text)}{card[end.end() :]}"


RESULTS = Marks("# draftconv: accept length", "# end: accept length")
"""In the front matter, around `model-index`."""

SECTION = Marks("<!-- draftconv: accept length -->", "<!-- end: accept length -->")

EMPTY_RESULTS = RESULTS.around("")
EMPTY_SECTION = SECTION.around(
    "Not measured yet. `draftconv parity` measures it, and `draftconv push --report` puts the figures here.\n"
)
REPORT_SECTION = SECTION.around(
    "`draftconv parity` measures it once more, and `draftconv push --report` puts the figures of a report here.\n"
)
"""The same where a certificate stands above it."""


def with_accept_length(card: str, section: str, results: str) -> str:
    """A card with the figures of a report.

    Args:
        section: Markdown. `results`: YAML of the key `model-index`; empty where nothing is to be indexed.

    Raises:
        CheckFailed: the card was edited, and a mark is gone, there twice or in another place.
    """
    matter = FENCED.match(card)
    top = RESULTS.filled(card[: matter.end()], results) if matter else None
    rest = SECTION.filled(card[matter.end() :], section) if matter else None
    if top is None or rest is None:
        place, marks = ("its front matter", RESULTS) if top is None else ("its text", SECTION)
        raise CheckFailed(
            f"README.md was edited, and {place} has no longer one place for accept length",
            why="what somebody wrote is not replaced",
            cure=f"put the line {marks.start} and under it {marks.end} where the figures should stand, or write the "
            "card again with `draftconv convert --overwrite` or `draftconv quantize --overwrite`",
        )
    if len(re.findall(r"^(?:model-index|['\"]model-index['\"])[ \t]*:", top, re.MULTILINE)) > bool(results):
        raise CheckFailed(
            "README.md was edited, and its front matter has a model-index of its own",
            why="the key would be there twice, and the Hub would read neither",
            cure="put those results into the report's place by hand, or push without --report",
        )
    return top + rest
