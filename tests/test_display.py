"""Results at a prompt and in a notebook: short, whole, and nothing that a stranger wrote can act."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest

from draftconv.display import LONGEST, Block, Column, Displayed, Table, card, named, table

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e'\n"
HARMLESS = "<script>alert(1)</script>\\x1b[31m\\u202e'\\n"


@dataclass(frozen=True, slots=True, repr=False)
class Found(Displayed):
    facts: tuple[str, ...]
    told: tuple[Block, ...] = ()

    def brief(self) -> Iterator[str]:
        yield from self.facts

    def blocks(self) -> Iterator[Block]:
        yield from self.told


class Parsed(HTMLParser):
    """Elements in order, and the text of those that hold one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.within: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.within

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.within.append(tag)
        assert {name for name, _ in attrs} <= {"class"}

    def handle_endtag(self, tag: str) -> None:
        assert self.within.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.within[-1], data))


def html(*told: Block) -> Parsed:
    return Parsed(Found((), told)._repr_html_())


# ── a line ─────────────────────────────────────────────────────────────────────────


def test_a_result_is_one_line() -> None:
    assert repr(Found(("'out'", "3 changes"))) == "Found('out', 3 changes)"


def test_a_line_is_never_long() -> None:
    line = repr(Found(("x" * 200, "y")))
    assert len(line) == LONGEST
    assert line == f"Found({'x' * (LONGEST - 8)}…)"
    assert repr(Found(("x" * (LONGEST - 7),))) == f"Found({'x' * (LONGEST - 7)})"


def test_a_line_stays_a_line_whatever_it_holds() -> None:
    assert repr(Found((HOSTILE,))) == f"Found({HARMLESS})"


@pytest.mark.parametrize(
    ("name", "shown"), [("out", "'out'"), ("x" * 40, f"'{'x' * 40}'"), ("x" * 41, f"'{'x' * 39}…'")]
)
def test_a_name_leaves_room_for_the_rest(name: str, shown: str) -> None:
    assert named(name) == shown


# ── a table ────────────────────────────────────────────────────────────────────────


def test_cells_are_harmless_and_may_have_lines() -> None:
    found = table(HOSTILE, "", (HOSTILE, Column("n", figures=True)), [(("a", HOSTILE), 3)])
    assert found == Table(HARMLESS, "", (Column(HARMLESS), Column("n", True)), ((f"a\n{HARMLESS}", "3"),))


def test_a_notebook_shows_tables_and_sentences_in_order() -> None:
    found = html(
        table("Engines", "", ("engine", Column("AL", True)), [("vllm", 2.5)]), "All < pass.", card("C", [("a", "b")])
    )
    assert found.texts[1:] == [
        ("caption", "Engines"), ("th", "engine"), ("th", "AL"), ("td", "vllm"), ("td", "2.5"),
        ("p", "All < pass."),
        ("caption", "C"), ("td", "a"), ("td", "b"),
    ]  # fmt: skip
    assert found.opened.count("thead") == 1


def test_nothing_acts_in_a_notebook() -> None:
    found = html(table(HOSTILE, "", (HOSTILE,), [(HOSTILE,)]), HOSTILE)
    assert found.texts[1:] == [("caption", HARMLESS), ("th", HARMLESS), ("td", HARMLESS), ("p", HARMLESS)]
    assert set(found.opened) == {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert Parsed(f"<p>{HOSTILE}</p>").opened == ["p", "script"]  # so the above would be noticed
