"""What people and CI read: the figures of the verdict, and nothing that a stranger wrote can act."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from draftconv.api.parity import exit_code
from draftconv.reference.accept_length import Counts
from draftconv.report import Report, tables
from draftconv.report.cells import cell_class, compact, short
from draftconv.report.formatting import (
    change,
    change_interval,
    controls,
    length,
    passage,
    sentence,
    share,
    signed,
    token,
)
from draftconv.report.interval_strips import WIDEST, Axis, Strip, category_axis, gate_axis
from draftconv.report.intervals import Interval
from draftconv.report.junit import junit
from draftconv.report.markdown import markdown
from draftconv.report.model import Control
from draftconv.report.page import page
from draftconv.report.statistics import Estimate
from draftconv.report.verdict import EXACT, Gate
from tests.report.simulated import decode, make

HOSTILE = "<script>alert(1)</script>|`$x$`\x1b[31m\u202eevil\u2066</td><img src=//x onerror=alert(1)>\n# [a](http://x)"


@cache
def report(case: str) -> Report:
    match case:
        case "pass":
            return make(prompts=40, tokens=64, loss=0.002)
        case "fail":
            return make(prompts=40, tokens=64, loss=0.08)
        case "inconclusive":
            return make(prompts=32, tokens=64, loss=0.025)
        case "few":
            return make(prompts=8, tokens=64, loss=0.0)
        case "equal":
            return make(prompts=4, tokens=64, gate=EXACT)
        case "unequal":
            return make(prompts=4, tokens=64, gate=EXACT, loss=0.2)
        case "void":
            return make(prompts=40, tokens=64, how="live")
        case "bare":
            return make(prompts=32, tokens=64, categories=("all of it",), losses=False, details=False)
        case "several":
            return make(prompts=32, tokens=64, loss=0.004, names=("bf16", "int8", "int4"))
        case "uncounted":
            return make(prompts=4, tokens=0, details=False)
        case _:
            return replace(report("bare"), comparisons=(), controls=report("pass").controls)


CASES = ("pass", "fail", "inconclusive", "few", "equal", "unequal", "void", "bare", "several", "uncounted", "controls")
OUTCOMES = {
    "pass": "equivalent",
    "fail": "fail",
    "inconclusive": "inconclusive",
    "few": "inconclusive",
    "equal": "pass",
    "unequal": "fail",
    "void": "void",
    "uncounted": "void",
}


@pytest.mark.parametrize(("case", "outcome"), OUTCOMES.items())
def test_the_cases_are_what_they_are_called(case: str, outcome: str) -> None:
    assert report(case).comparisons[0].verdict.outcome == outcome


class Parsed(HTMLParser):
    """Elements with their attributes, and the text of every leaf; refuses what is not well nested."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs))
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(filter(None, self.texts)).replace("\N{NO-BREAK SPACE}", " ")


@cache
def parsed(case: str) -> Parsed:
    return Parsed(page(report(case), decode))


@pytest.mark.parametrize("case", CASES)
def test_a_page_stands_alone(case: str) -> None:
    found = parsed(case)
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not {"script", "img", "link", "iframe", "object", "form", "base"} & {tag for tag, _ in found.elements}
    for tag, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith("#"), tag
    assert not re.search(r"url\((?!#)|@import", page(report(case), decode))
    references = {value[1:] for _, a in found.elements for n, value in a.items() if value and n.endswith("href")}
    assert references <= set(ids)
    policy = next(a["content"] for t, a in found.elements if t == "meta" and "http-equiv" in a)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.mark.parametrize("case", CASES)
def test_drawings_speak_to_those_who_cannot_see_them(case: str) -> None:
    ids = {attributes.get("id") for _, attributes in parsed(case).elements}
    for tag, attributes in parsed(case).elements:
        if tag == "svg" and "aria-hidden" not in attributes:
            assert attributes["role"] == "img"
            assert attributes.get("aria-label") or set(str(attributes["aria-labelledby"]).split()) <= ids


@pytest.mark.parametrize("case", ["pass", "fail", "inconclusive", "equal", "unequal", "void", "bare", "several"])
def test_the_page_and_the_summary_have_the_figures_of_the_verdict(case: str) -> None:
    text, summary = parsed(case).text, markdown(report(case), decode)
    for comparison in report(case).comparisons:
        verdict = comparison.verdict
        assert sentence(comparison) in text
        assert verdict.estimate is not None
        several = verdict.categories.values() if len(verdict.categories) > 1 else ()
        for found in (verdict.estimate, *several):
            row = (
                str(found.clusters),
                length(found.reference.value),
                length(found.candidate.value),
                change(found.ratio),
                change_interval(found.interval),
            )
            if several:
                assert " ".join(row) in text
            assert " | ".join(row) in summary
        for depth in comparison.depths:
            rates = (share(depth.reached.reference.value), share(depth.reached.candidate.value))
            assert f"{depth.depth} {' '.join(rates)}" in text
            assert f"| {depth.depth} | {' | '.join(rates)} |" in summary


@pytest.mark.parametrize("case", CASES)
def test_summary_tables_are_rectangular(case: str) -> None:
    for block in markdown(report(case), decode).split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") - line.count("\\|") for line in block.splitlines()}) == 1, block


def test_a_summary_reads_well() -> None:
    lines = markdown(report("pass"), decode).splitlines()
    assert lines[0] == "# Accept-length parity"
    assert lines[2].startswith("✓ **equivalent**: int4-g128 keeps ")
    assert "| drafter | AL | change | 95 % interval | asked for | verdict |" in lines
    assert "| --- | ---: | ---: | ---: | --- | --- |" in lines
    assert "draftconv parity bf16 int4-g128 --trace trace --margin 0.02 --report out" in lines


def test_ids_are_shown_where_nothing_decodes_them() -> None:
    text = Parsed(page(report("fail"))).text
    assert "There was no tokenizer" in text
    assert "There was no tokenizer" not in parsed("fail").text
    place = report("fail").comparisons[0].losses.largest[0]  # type: ignore[union-attr]
    assert " ".join(map(str, place.context)) in text


def test_a_place_shows_what_was_drafted() -> None:
    losses = report("fail").comparisons[0].losses
    assert losses is not None
    place = losses.largest[0]
    assert passage(decode, place.context) in re.sub(r"^…", "", parsed("fail").text.replace("…", ""))
    assert f"{place.reference_accepted} accepted became {place.candidate_accepted}" in parsed("fail").text


# ── hostile text ───────────────────────────────────────────────────────────────────


def hostile() -> Report:
    made = make(prompts=40, tokens=64, loss=0.08, categories=(HOSTILE, "b"), names=("bf16", HOSTILE))
    about = replace(
        made.about, target=HOSTILE, prompts=HOSTILE, command=("draftconv", HOSTILE), settings={HOSTILE: HOSTILE}
    )
    arms = tuple(replace(arm, source=HOSTILE, layout=HOSTILE, facts={HOSTILE: HOSTILE}) for arm in made.arms)
    return replace(made, about=about, arms=arms, controls=(Control(HOSTILE, HOSTILE, 2.0, False, None, HOSTILE),))


def evil(_: Sequence[int]) -> str:
    return HOSTILE


def test_hostile_text_is_inert_on_the_page() -> None:
    found = Parsed(page(hostile(), evil))
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in parsed("fail").elements}
    assert "<script>alert(1)</script>" in found.text
    assert all(c.isprintable() or c in "\n\N{NO-BREAK SPACE}" for c in page(hostile(), evil))
    assert "$x$" in found.text


def test_hostile_text_is_inert_in_the_summary() -> None:
    summary = markdown(hostile(), evil)
    assert all(c.isprintable() or c == "\n" for c in summary)
    prose = re.sub(r"```sh\n.*?\n```", "", summary, flags=re.DOTALL)
    assert "<script" not in prose
    assert "<img" not in prose
    assert not re.search(r"(?<!\\)\[a|://", prose)
    assert not [line for line in summary.splitlines() if line.startswith("# ") and "parity" not in line]


def test_hostile_text_is_inert_in_junit() -> None:
    root = ElementTree.fromstring(junit(hostile()))
    assert {element.tag for element in root.iter()} <= {"testsuites", "testsuite", "testcase", "failure", "skipped"}
    assert all(c.isprintable() or c == "\n" for c in junit(hostile()))


# ── JUnit ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("pass", None),
        ("equal", None),
        ("fail", "failure"),
        ("unequal", "failure"),
        ("inconclusive", "error"),
        ("void", "error"),
        ("uncounted", "error"),
    ],
)
def test_what_a_verdict_is_in_junit(case: str, result: str | None) -> None:
    suite = ElementTree.fromstring(junit(report(case)))[0]
    first = suite[0]
    assert [child.tag for child in first] == ["system-out" if result is None else result]
    if result is None:
        assert first[0].text == sentence(report(case).comparisons[0])
    else:
        assert first[0].get("type") == report(case).comparisons[0].verdict.outcome
        assert first[0].get("message") == sentence(report(case).comparisons[0])


@pytest.mark.parametrize("case", CASES)
def test_junit_holds_no_time(case: str) -> None:
    """The same run gives the same bytes, and no case took a time of its own."""
    for element in ElementTree.fromstring(junit(report(case))).iter():
        assert not {"time", "timestamp", "hostname"} & element.attrib.keys()


@pytest.mark.parametrize("case", CASES)
def test_junit_totals_are_those_of_its_cases(case: str) -> None:
    root = ElementTree.fromstring(junit(report(case)))
    assert root.tag == "testsuites"
    (suite,) = root
    for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        count = len(list(suite.iter(tag)))
        assert int(suite.attrib[plural]) == int(root.attrib[plural]) == count
    assert int(suite.attrib["tests"]) == len(suite)
    names = [(case.get("classname"), case.get("name")) for case in suite]
    assert len(names) == len(set(names))


def test_categories_in_junit_follow_their_guard() -> None:
    verdict = report("fail").comparisons[0].verdict
    suite = ElementTree.fromstring(junit(report("fail")))[0]
    found = {case.get("name"): [child.tag for child in case] for case in suite}
    assert verdict.gate.margin is not None
    for name, part in verdict.categories.items():
        low, high = part.interval.low, part.interval.high
        wanted = ["failure"] if high < 0.95 else ["skipped"] if low <= 0.95 else ["system-out"]
        assert found[f"category {name} keeps 95 %"] == wanted
    assert ["failure"] in found.values()
    assert ["skipped"] in found.values()


def test_controls_in_junit() -> None:
    missed = replace(report("pass"), controls=(*report("pass").controls, Control("c", "nothing", 2.5, False)))
    suite = ElementTree.fromstring(junit(missed))[0]
    found = {case.get("name"): [child.tag for child in case] for case in suite}
    assert found["boundaries shifted is caught"] == []
    assert found["d2t zeroed is caught"] == ["skipped"]
    assert found["c is caught"] == ["failure"]


def test_controls_of_a_drafter_that_is_wired_wrongly_tell_nothing() -> None:
    void = replace(report("controls"), controls=(Control("c", "x", 1.01, True, "void", "1 % of its drafts"),))
    (case,) = ElementTree.fromstring(junit(void))[0]
    assert [child.get("type") for child in case] == ["void"]
    assert controls(void) == "The broken drafters tell nothing: 1 % of its drafts."
    assert exit_code(void) == 4
    told = replace(void, controls=(replace(void.controls[0], outcome="inconclusive"),))
    assert controls(told) == "Every broken drafter was noticed."
    assert exit_code(told) == 0
    missed = replace(void, controls=(replace(void.controls[0], outcome="pass", caught=False),))
    assert controls(missed) == "Not noticed: c."
    assert exit_code(missed) == 1


def test_the_drafter_itself_stands_above_its_controls() -> None:
    made = report("controls")
    first = made.arms[0].name
    (shown,) = (row for row in tables.controls(made).rows if row[0] == tables.NONE)
    assert shown[2] == length(Counts.pooled(line.counts for line in made.records if line.arm == first).accept_length)
    assert tables.controls(report("bare")).rows == ()


# ── tables, words, strips ──────────────────────────────────────────────────────────


def test_the_headline_has_every_drafter_once() -> None:
    table = tables.headline(report("several"))
    assert [row[0] for row in table.rows] == ["bf16", "int8", "int4"]
    assert [row[5] for row in table.rows] == ["reference", *(c.verdict.outcome for c in report("several").comparisons)]


def test_rates_that_cannot_be_told_are_dashes() -> None:
    comparison = report("pass").comparisons[0]
    depths = (*comparison.depths[:-1], replace(comparison.depths[-1], conditional=None))
    assert tables.depths(replace(comparison, depths=depths)).rows[-1][-2:] == ("—", "—")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (-0.001, "0.00"), (0.004, "0.00"), (-0.31, "\N{MINUS SIGN}0.31"), (1.5, "+1.50")],
)
def test_signs(value: float, text: str) -> None:
    assert signed(value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [(" the", "␣the"), ("  ", "␣␣"), ("", "(7)"), ("a\n", "a↵"), ("\x1b[0m", "\\x1b[0m"), ("\u202e", "\\u202e")],
)
def test_a_token_shows_what_cannot_be_seen(text: str, shown: str) -> None:
    assert token(lambda _: text, 7) == shown
    assert token(None, 7) == "7"


def measured(low: float, ratio: float, high: float) -> Estimate:
    estimate = report("pass").comparisons[0].verdict.estimate
    assert estimate is not None
    return replace(estimate, ratio=ratio, interval=Interval(low, high))


def test_strips_lie_where_their_figures_are() -> None:
    axis = Axis.of([measured(0.96, 0.975, 0.99)], 0.98)
    assert axis.limit_at is not None
    assert 0 < axis.at(0.96) < axis.at(0.98) == axis.limit_at < axis.at(0.99) < axis.zero < 100
    ticks = {tick.text: tick.at for tick in axis.ticks}
    assert ticks["0"] == axis.zero
    assert ticks["\N{MINUS SIGN}2"] == axis.limit_at
    assert len(axis.ticks) <= 8


def drawn(case: str) -> Iterator[tuple[Strip, Estimate]]:
    """Every strip of a page with what it draws."""
    for comparison in report(case).comparisons:
        verdict = comparison.verdict
        assert verdict.estimate is not None
        for axis, parts in (
            (gate_axis(verdict), [verdict.estimate]),
            (category_axis(verdict), [verdict.estimate, *verdict.categories.values()]),
        ):
            yield from ((axis.strip(part), part) for part in parts)


@pytest.mark.parametrize("case", ["pass", "fail", "inconclusive", "few", "several", "bare"])
def test_every_interval_fits_its_axis(case: str) -> None:
    for strip, _ in drawn(case):
        assert 0 < strip.low <= strip.value <= strip.high < 100
        assert not strip.clipped


def test_the_axis_holds_all_together_where_no_category_does() -> None:
    """Once it was made of the categories alone, and the bar of all lay at -119 % of its width."""
    verdict = make(prompts=32, tokens=64, categories=("",), loss=0.08).comparisons[0].verdict
    assert verdict.categories == {}
    assert verdict.estimate is not None
    strip = category_axis(verdict).strip(verdict.estimate)
    assert 0 < strip.low < strip.value < strip.high < 100


@pytest.mark.parametrize("case", ["equal", "unequal"])
def test_only_an_interval_that_tells_nothing_is_clipped(case: str) -> None:
    """Categories of one prompt: all that is possible is their interval."""
    for strip, estimate in drawn(case):
        wide = estimate.interval.high - estimate.interval.low > WIDEST
        assert wide or not strip.clipped
        assert 0 <= strip.low <= strip.value <= strip.high <= 100
        assert 0 < strip.value < 100
        assert (strip.low == 0) == strip.below
        assert (strip.high == 100) == strip.above


def test_a_thin_category_hides_no_other() -> None:
    thin, narrow = measured(0.25, 1.0, 4.0), measured(0.98, 0.99, 1.0)
    axis = Axis.of([thin, narrow], 0.95)
    assert axis.strip(thin) == Strip(0.0, axis.zero, 100.0, below=True, above=True)
    assert axis.strip(narrow).high - axis.strip(narrow).low > 8
    assert Axis.of([measured(0.6, 0.65, 0.7)], 0.95).strip(measured(0.6, 0.65, 0.7)).clipped is False


def test_a_clipped_interval_has_an_arrow_and_its_figures() -> None:
    text = page(make(prompts=60, tokens=64, categories=("rare", *("coding", "maths") * 30)))
    assert text.count('class="beyond"') == 2
    assert "An arrow means that an interval goes on beyond the axis." in text
    assert "\N{MINUS SIGN}75.00 to +300.00\N{NO-BREAK SPACE}%" in text
    assert "beyond" not in Parsed(page(report("pass"))).text


def test_ticks_have_room_and_every_second_one_can_go() -> None:
    axis = Axis(0.9, 1.1, None)
    assert [tick.text.replace("\N{MINUS SIGN}", "-") for tick in axis.ticks] == ["-5", "0", "+5"]
    assert [tick.minor for tick in axis.ticks] == [True, False, True]


def test_a_page_of_controls_begins_with_what_they_say() -> None:
    assert "✓ pass Every broken drafter was noticed. Negative controls The reference, broken" in parsed("controls").text
    missed = replace(report("controls"), controls=(Control("c", "x", 2.5, False),))
    assert "✗ fail Not noticed: c." in Parsed(page(missed)).text


def test_nothing_is_said_of_losses_where_nothing_was_counted() -> None:
    losses = report("uncounted").comparisons[0].losses
    assert losses is not None
    assert losses.places == 0
    assert "Where the drafter lost" not in parsed("uncounted").text
    assert "Where the drafter lost" in parsed("void").text


def test_without_categories_there_is_no_table_of_them() -> None:
    assert "By category" not in Parsed(page(report("bare"))).text
    assert "By category" in parsed("pass").text


def test_the_page_names_the_floor_that_the_gate_asks_for() -> None:
    wide = page(make(prompts=80, tokens=256, gate=Gate(0.2)))
    assert "Every one keeps 80\N{NO-BREAK SPACE}% or more" in wide
    note = tables.categories(make(gate=Gate(0.2), prompts=40).comparisons[0]).note
    assert note.startswith("A thin category has too few prompts to say that it keeps 80 % of its accept length;")


# ── cells ──────────────────────────────────────────────────────────────────────────


def test_a_hash_is_cut_and_whole_in_its_title() -> None:
    digest, commit = "0123456789abcdef" * 4, "9a1b2c3d4e" * 4
    assert compact(f"sha256:{digest}") == f'<abbr title="sha256:{digest}">sha256:0123456789ab…</abbr>'
    assert compact(f"a/b@{commit} <i>") == f'<abbr title="a/b@{commit}">a/b@9a1b2c3d4e9a…</abbr> &lt;i&gt;'
    assert short(f"a/b@{commit}") == "a/b@9a1b2c3d4e9a…"


@pytest.mark.parametrize("text", ["", "lightseekorg/kimi-k2.6-eagle3.1-mla", "0e9e39f", "1234567890" * 2, "a b " * 50])
def test_what_people_read_is_not_cut(text: str) -> None:
    assert compact(text) == text


def test_a_long_name_keeps_its_revision_and_its_end() -> None:
    commit = "9a1b2c3d4e" * 4
    assert short(f"lightseekorg/kimi-k2.6-eagle3.1-mla@{commit}") == "lightseekorg/kimi-k2.6-eagle3.1-mla@9a1b2c3"
    assert short(f"{'drafter_' * 20}@{commit}") == "drafter_drafter_drafter_drafter_…ter_@9a1b2c3"


def test_columns_of_long_names_are_called_by_their_part() -> None:
    for names, titles in ((("bf16", "int4"), ("bf16", "int4")), (("bf16", "i" * 17), ("reference", "candidate"))):
        (comparison,) = make(prompts=8, tokens=16, names=names).comparisons
        for table in (tables.categories(comparison), tables.depths(comparison)):
            assert {*titles} < {column.title for column in table.columns}


def test_endless_names_stay_apart() -> None:
    one, other = (f"{'drafter_' * 20}{end}" for end in ("int4", "int8"))
    assert short(one) != short(other)
    assert len(short(one)) == 45
    assert compact('"><b>' * 20).startswith('<abbr title="&#34;&gt;&lt;b&gt;')


@pytest.mark.parametrize(
    ("text", "figures", "title", "classes"),
    [
        ("2.610", True, "AL", "figure brief"),
        ("the same, since nothing in a replay varies", True, "", "figure wordy whole"),
        ("int4-g128", False, "", "brief"),
        ("モデル", False, "", ""),
        ("a_name_without_blanks", False, "", "long whole"),
        ("\N{MINUS SIGN}1.99 to +0.41 %", True, "95 % interval", "figure whole"),
    ],
)
def test_how_a_cell_is_set(text: str, figures: bool, title: str, classes: str) -> None:
    assert cell_class(text, figures, title) == classes


def test_what_all_drafters_share_stands_there_once() -> None:
    rows = [attributes.get("colspan") for tag, attributes in parsed("several").elements if tag == "td"]
    assert rows.count("3") == len([row for row in tables.arms(report("several")).rows if len(set(row[1:])) == 1]) > 0


def test_the_floor_is_drawn_only_where_a_category_comes_near() -> None:
    assert category_axis(report("fail").comparisons[0].verdict).limit == 0.95
    verdict = make(prompts=80, tokens=256).comparisons[0].verdict
    assert category_axis(verdict).limit is None
    assert category_axis(report("equal").comparisons[0].verdict).limit is None
