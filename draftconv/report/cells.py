"""Names and figures as the page shows them: shortened where nobody reads all of it, whole where somebody points."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

HASH = re.compile(r"(?<![0-9a-fA-F])(([0-9a-f]{7})[0-9a-f]{5})[0-9a-f]{20,}(?![0-9a-fA-F])")
"""A hash, the part of it that people compare, and what git leaves of it, for names that are long already."""
WORD = re.compile(r"\S+")
HEAD, TAIL = 32, 12
"""Characters that are left of a longer word: names that differ at their ends must not look alike."""
LONGEST = HEAD + 1 + TAIL
UNBROKEN = 16
"""Characters of a word that a narrow column may not break; of text that stays on one line."""
WORDY = 24
"""Characters of what stands in a column of figures and is none."""
HALF_CARD = 18
"""Characters that fit half of a phone's width, with the title of their column."""


def compact(text: str) -> Markup:
    """Text with its hashes and endless words cut short, each whole in its `title`; markup in it is escaped."""
    from markupsafe import Markup, escape

    def shown(word: re.Match[str]) -> str:
        whole, cut = word[0], _cut(word)
        return str(escape(whole) if cut == whole else Markup('<abbr title="{}">{}</abbr>').format(whole, cut))

    return Markup(WORD.sub(shown, text))


def short(text: str) -> str:
    """The same without what is cut off, where there can be no `title`."""
    return WORD.sub(_cut, text)


def _cut(word: re.Match[str]) -> str:
    text = HASH.sub(r"\1…", word[0])
    if len(text) > LONGEST:
        text = HASH.sub(r"\2", word[0])
    return text if len(text) <= LONGEST else f"{text[:HEAD]}…{text[-TAIL:]}"


def cell_class(text: str, figures: bool, title: str = "") -> str:
    """The classes of a cell, by name what styles them.

    `figure` stands at the right, on one line unless `wordy`; `brief` keeps to one line, titles where there is room;
    `long` may be broken anywhere; `whole` takes a line of its own on a card, where it stands after its column's title.
    """
    classes = {
        "figure": figures,
        "wordy": figures and len(text) > WORDY,
        "brief": len(text) <= UNBROKEN and text.isascii(),  # other letters may be wider than a column
        "long": max(map(len, text.split()), default=0) > UNBROKEN,
        "whole": len(title) + len(text) > HALF_CARD,
    }
    return " ".join(name for name, applies in classes.items() if applies)
