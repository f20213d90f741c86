"""Tables in the columns of a terminal: whatever a command prints, no word that fits on a line is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from draftconv.cli import output, tables
from draftconv.cli.tables import GAP, NARROW, fit, render, wrap
from draftconv.display import Column, Table, card, table
from draftconv.live.profiles import profile_names
from draftconv.quantization.recipes import recipe_names
from draftconv.traces.suites import suites
from tests import tiny
from tests.cli.conftest import Run
from tests.report.test_report_pages import CASES, report
from tests.traces.recorded import DATA, Recorded

WIDTHS = (80, 60)
LONG = "layers.0.self_attn.a_name_that_no_trainer_would_give_to_a_weight.weight"
DRAFTERS = sorted(path.name for path in (DATA / "drafters").iterdir())


def plain(block: Table, width: int) -> list[str]:
    return [line.plain for line in render(block, width)]


def broken_words(block: Table, width: int) -> set[str]:
    """Words of a table's cells that do not stand whole in its lines, those left out that are longer than a line."""
    told = Counter(word for line in plain(block, width) for word in line.split())
    told += Counter(word.removesuffix(":") for word in told.elements() if word.endswith(":"))  # a stacked name
    asked = Counter(word for row in block.rows for cell in row for word in cell.split())
    return {word for word, count in asked.items() if cell_len(word) <= width and told[word] < count}


def overlong(block: Table, width: int) -> list[str]:
    return [line for line in plain(block, width) if cell_len(line) > width]


# ── widths ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("columns", "room", "widths"),
    [
        ([["ab", "c"], ["def"]], 7, (2, 3)),
        ([["ab"], ["de fg"]], 9, (2, 5)),
        ([["ab"], ["de fg"]], 8, None),
        ([["ab"], ["def"]], 6, None),
        ([["word " * 9], ["x"]], 30, (27, 1)),
        ([["word " * 9], ["word " * 9]], 2 * NARROW + GAP + 10, (NARROW + 5, NARROW + 5)),
        ([["word " * 9], ["word " * 9]], 2 * NARROW + GAP + 9, (NARROW + 5, NARROW + 4)),
        ([["word " * 9], ["word " * 9]], 2 * NARROW + GAP - 1, None),
        ([["日本"], ["x"]], 7, (4, 1)),
        ([["日本"], ["x"]], 6, None),
        ([[""], []], 10, (0, 0)),
    ],
)
def test_widths(columns: Sequence[Sequence[str]], room: int, widths: tuple[int, ...] | None) -> None:
    assert fit([[line.strip() for line in column] for column in columns], room) == widths


def test_columns_stand_side_by_side_while_they_can() -> None:
    block = table("T", "", ("name", Column("AL", figures=True)), [("a", "2.5"), (("b", "more of b"), "11.5")])
    assert plain(block, 80) == ["T", " name         AL", " " + "─" * 15, " a           2.5", " b          11.5",
                                " more of b", ""]  # fmt: skip


def test_a_narrow_terminal_has_a_line_for_every_cell() -> None:
    block = table("T", "", ("name", "", "how"), [(LONG, "absent", "in two words"), ("", "", "alone")])
    assert plain(block, 76) == ["T", f" name: {LONG}"[: -len(LONG) - 1], f"   {LONG}", "   absent",
                                "   how: in two words", "   how: alone", ""]  # fmt: skip


def test_a_card_has_its_names_before_what_they_say() -> None:
    block = card("C", [("layout", "vllm"), ("", "a note"), ("long", LONG)])
    assert plain(block, 90)[:3] == ["C", " layout  vllm", "         a note"]
    assert plain(block, 76)[:4] == ["C", " layout: vllm", "   a note", " long:"]


def test_a_word_that_needs_the_room_is_not_indented() -> None:
    for width in range(len(LONG), len(LONG) + 9):
        assert not broken_words(card("", [("n", LONG)]), width)
        assert max(map(len, plain(card("", [("n", LONG)]), width))) <= width
    assert broken_words(card("", [("n", LONG)]), len(LONG) - 1) == set()  # longer than a line: folded
    assert all(LONG not in line for line in plain(card("", [("n", LONG)]), len(LONG) - 1))


def test_a_broken_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test below fails where widths are shared out without a look at words."""
    monkeypatch.setattr(tables, "fit", lambda columns, room: (room // len(columns) - GAP,) * len(columns))
    assert broken_words(table("", "", ("a", "b"), [("x", LONG)]), 76) == {LONG}


def test_sentences_wrap_between_words() -> None:
    lines = [line.plain for line in wrap(Text("  a reason of several words"), 14, rest=4)]
    assert lines == ["  a reason", "    of several", "    words"]


# ── what commands print ────────────────────────────────────────────────────────────


@pytest.fixture
def printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Table]]]:
    """`printed("inspect", path)`: the tables of a command, which is run."""
    seen: list[Table] = []

    def record(block: Table, width: int) -> Iterator[Text]:
        seen.append(block)
        return render(block, width)

    monkeypatch.setattr(tables, "render", record)

    def of(*words: object) -> list[Table]:
        seen.clear()
        done = run(*words)
        assert done.exit_code in (0, 1), done.output
        return [*seen]

    yield of


def hold(blocks: Sequence[Table]) -> None:
    assert blocks
    for block in blocks:
        for width in WIDTHS:
            assert (block.title, broken_words(block, width)) == (block.title, set())
            assert overlong(block, width) == []


@pytest.mark.parametrize("name", DRAFTERS)
def test_trained_drafters(name: str, printed: Callable[..., list[Table]]) -> None:
    drafter, target = DATA / "drafters" / name, DATA / "targets" / ("mla" if name.startswith("mla") else "llama")
    words = ("--target", target)
    hold(printed("inspect", drafter, "-v"))
    hold(printed("inspect", drafter, "-v", *words))
    hold(printed("convert", drafter, "out", "--to", "vllm", "--dry-run", *words))
    printed("convert", drafter, "out", "--to", "vllm", *words)
    hold(printed("diff", drafter, "out"))
    printed("verify", "out", "--against", drafter, *words)
    hold(printed("quantize", drafter, "small", "--recipe", "w4a16", "--for", "vllm", *words))
    hold(printed("verify", "small", "--against", drafter, *words))
    hold(printed("diff", drafter, "small"))
    hold(printed("inspect", "small", "-v", *words))


@pytest.mark.parametrize("layout", tiny.FIRST)
def test_every_layout(layout: str, printed: Callable[..., list[Table]], tmp_path: Path) -> None:
    for name, variant in tiny.VARIANTS.items():
        if tiny.fits(variant, layout):
            hold(printed("inspect", tiny.spell(name, layout).write(tmp_path / name), "-v"))


@pytest.mark.parametrize("name", ["", *recipe_names(), *profile_names(), *suites()])
def test_what_ships(name: str, printed: Callable[..., list[Table]]) -> None:
    hold(printed("recipes", *filter(None, [name])))


@pytest.mark.parametrize("case", CASES)
def test_parity(case: str) -> None:
    hold([block for block in report(case).blocks() if isinstance(block, Table)])


def test_a_trace(recorded: Recorded) -> None:
    from draftconv.traces.trace import open_trace

    hold([block for block in open_trace(recorded()).blocks() if isinstance(block, Table)])


# ── a terminal and a pipe ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(("terminal", "lines"), [(True, 2), (False, 1)])
def test_a_sentence_is_wrapped_on_a_terminal_only(
    terminal: bool, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        output, "console", lambda: Console(width=60, force_terminal=terminal, color_system=None, highlight=False)
    )
    output.show(["word " * 16 + "end"])
    told = capsys.readouterr().out
    assert told.split() == ["word"] * 16 + ["end"]
    assert told.count("\n") == lines


def test_nothing_is_shown_to_somebody_who_wants_silence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "is_quiet", lambda: True)
    assert run("recipes").stdout == ""
