"""Reports written and read back: the same bytes, the same verdict, and no edit goes unseen."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draftconv.errors import BadReport, WriteError
from draftconv.report import Losses, Place, Report, read_report, write_report
from draftconv.report.extension import extend
from draftconv.report.model import Comparison, Missed
from draftconv.report.records import read_lines, run_twice
from draftconv.report.verdict import EXACT, judge
from draftconv.report.write import refuse_place
from tests.report.simulated import decode, make, summed

LOSS = 0.025
"""Too near 2 % for few prompts."""
FILES = {"records.jsonl", "report.json", "report.md", "junit.xml", "report.html"}


@pytest.fixture(scope="module")
def report() -> Report:
    return make(prompts=40, tokens=64, loss=0.02)


@pytest.fixture
def written(report: Report, tmp_path: Path) -> Path:
    write_report(report, tmp_path / "out")
    return tmp_path / "out"


def test_a_report_comes_back(report: Report, written: Path) -> None:
    assert {path.name for path in written.iterdir()} == FILES
    assert read_report(written) == report


def test_a_live_report_with_a_second_run_of_the_reference_comes_back(tmp_path: Path) -> None:
    made = make(prompts=40, tokens=64)
    again = tuple(replace(record, arm="again") for record in made.records if record.arm == "bf16")[:35]
    records = (*made.records, *again)
    comparison = Comparison.of(
        records, "bf16", "int4-g128", made.comparisons[0].verdict.gate, how="live", again="again", errors=2
    )
    assert comparison.verdict.outcome == "equivalent"
    assert comparison.verdict.aa is not None
    assert comparison.verdict.aa.requests == 35
    arms = (*made.arms, replace(made.arms[0], name="again"))
    live = replace(
        made, about=replace(made.about, how="live", trace=None), arms=arms, records=records, comparisons=(comparison,)
    )
    write_report(live, tmp_path / "out")
    assert read_report(tmp_path / "out") == live
    assert read_report(tmp_path / "out").sample(comparison).aa == run_twice(records, "bf16", "again")


def test_the_records_give_the_verdict_again(report: Report, written: Path) -> None:
    """By nothing but the lines and `judge`."""
    records = list(read_lines((written / "records.jsonl").read_bytes()))
    random.Random(1).shuffle(records)
    told = json.loads((written / "report.json").read_text())["comparisons"][0]["verdict"]
    pairs = replace(report, records=tuple(records)).pairs(report.comparisons[0])
    verdict = judge(pairs, report.comparisons[0].verdict.gate, how="replay")
    assert verdict.estimate is not None
    assert (verdict.outcome, verdict.estimate.ratio) == (told["outcome"], told["estimate"]["ratio"])
    assert verdict == report.comparisons[0].verdict


def test_the_same_report_gives_the_same_bytes(report: Report, written: Path, tmp_path: Path) -> None:
    write_report(report, tmp_path / "twice")
    for name in FILES:
        assert (tmp_path / "twice" / name).read_bytes() == (written / name).read_bytes(), name
        assert str(tmp_path).encode() not in (written / name).read_bytes()


def test_a_report_replaces_only_a_report(report: Report, written: Path, tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="exists already"):
        write_report(report, written)
    write_report(report, written, decode=decode, overwrite=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "report.json").write_text('{"tests": 3}')
    with pytest.raises(WriteError, match=r"no report\.json of ours"):
        write_report(report, other, overwrite=True)
    assert (other / "report.json").read_text() == '{"tests": 3}'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("notes.md", "precious", r": notes\.md\n"),
        ("records.jsonl", "", r": records\.jsonl\n"),
        ("report.json", '{"format": "draftconv-parity-report"}', r"no report\.json of ours"),
    ],
)
def test_a_report_replaces_nothing_else(name: str, text: str, said: str, report: Report, written: Path) -> None:
    (written / name).write_text(text)
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    for refuse in (refuse_place, partial(write_report, report)):
        with pytest.raises(WriteError, match=said):
            refuse(written, overwrite=True)
    assert {path.name: path.read_bytes() for path in written.iterdir()} == before


def test_a_report_that_contradicts_itself_is_not_written(report: Report, tmp_path: Path) -> None:
    verdict = replace(report.comparisons[0].verdict, outcome="equivalent")
    broken = replace(report, comparisons=(replace(report.comparisons[0], verdict=verdict),))
    with pytest.raises(BadReport, match="says equivalent of int4-g128: "):
        write_report(broken, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_figure_that_is_no_number_is_not_written(report: Report, tmp_path: Path) -> None:
    comparison = report.comparisons[0]
    diagnostics = replace(comparison.diagnostics, agreement=float("nan"))
    broken = replace(report, comparisons=(replace(comparison, diagnostics=diagnostics),))
    with pytest.raises(BadReport):
        write_report(broken, tmp_path / "out")
    assert not list(tmp_path.iterdir())


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda d: d.update(version=2), "version: input should be 1"),
        (lambda d: d.update(format="other"), "format: input should be 'draftconv-parity-report'"),
        (lambda d: d.pop("about"), "about: field required"),
        (lambda d: d["about"].update(host="x"), "about.host: unexpected"),
        (lambda d: d["about"].update(depth="3"), "about.depth: input should be a valid integer"),
        (lambda d: d["comparisons"][0]["verdict"].update(outcome="fine"), "outcome: input should be"),
        (lambda d: d["comparisons"][0]["verdict"]["gate"].update(margin=7.0), "margin 7 is not between"),
        (
            lambda d: d["comparisons"][0]["verdict"]["gate"].update(margin=None),
            "its records say fail: 37 of 40 requests have other counts",
        ),
        (lambda d: d["comparisons"][0]["verdict"].update(outcome="inconclusive"), "says inconclusive"),
        (lambda d: d["comparisons"][0].update(candidate="x"), "compares x, which is none of its arms"),
        (lambda d: d["comparisons"][0].update(errors=10**6), "its records say void"),
        (lambda d: d.update(records_sha256="0" * 64), "records.jsonl is not the one"),
    ],
)
def test_an_edited_report_is_not_believed(tmp_path: Path, edit: Edit, what: str) -> None:
    write_report(make(prompts=40, tokens=64, loss=0.08), tmp_path / "out")
    path = tmp_path / "out" / "report.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    with pytest.raises(BadReport, match=what):
        read_report(tmp_path / "out")


@pytest.mark.parametrize("data", [b"", b"\xff", b"[1]", b"{" * 10_000, b'{"format": NaN}', b'{"a": 1, "a": 2}'])
def test_what_is_no_report_is_refused(written: Path, data: bytes) -> None:
    (written / "report.json").write_bytes(data)
    with pytest.raises(BadReport):
        read_report(written)


def test_edited_records_are_not_believed_even_with_their_hash(written: Path) -> None:
    path = written / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)[:-1]
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadReport, match="not the one"):
        read_report(written)
    document = json.loads((written / "report.json").read_text())
    document["records_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (written / "report.json").write_text(json.dumps(document))
    with pytest.raises(BadReport, match="same requests of bf16 and int4-g128"):
        read_report(written)


def test_a_missing_file_is_named(written: Path) -> None:
    (written / "records.jsonl").unlink()
    with pytest.raises(BadReport, match=r"records\.jsonl") as caught:
        read_report(written)
    assert "--report" in caught.value.cure


def test_an_inconclusive_report_can_be_extended(tmp_path: Path) -> None:
    first = make(prompts=32, tokens=64, loss=LOSS, losses=False, details=False)
    assert first.comparisons[0].verdict.outcome == "inconclusive"
    write_report(first, tmp_path / "out")
    read = read_report(tmp_path / "out")
    more = make(prompts=32, tokens=64, loss=LOSS, losses=False, details=False, seed=8, first=32)
    both = extend(read.earlier(read.comparisons[0]), more.sample(more.comparisons[0]))
    assert len(both.pairs) == 64
    assert both.terms.candidate == read.arms[1].content


def test_identical_texts_are_counted(report: Report) -> None:
    comparison = report.comparisons[0]
    assert report.identical(comparison) == 40
    other = replace(report.records[1], tokens="other")
    assert replace(report, records=(report.records[0], other, *report.records[2:])).identical(comparison) == 39


def place(reference: int, candidate: int, token: int = 5) -> Place:
    target = (token, token, token)
    return Place("a", 9, (1, 2), target, (*target[:reference],), (*target[:candidate],), reference, candidate)


def test_losses_are_summed_and_the_costliest_kept() -> None:
    places = [place(1, 0, 4), place(3, 0, 5), place(2, 2), place(0, 3), place(2, 1, 4), *[place(1, 0, 6)] * 50]
    losses = summed(places, keep=2)
    assert (losses.places, losses.worse, losses.better, losses.lost, losses.gained) == (55, 53, 1, 55, 3)
    assert losses.tokens == (Missed(6, 50, 50), Missed(5, 1, 3))
    assert losses.largest == (places[1], places[0])


def test_no_place_no_loss() -> None:
    assert summed(()) == Losses(0, "positions", 0, 0, 0, 0, (), ())


def test_an_exact_gate_keeps_who_differs(tmp_path: Path) -> None:
    exact = make(prompts=4, tokens=64, loss=0.1, gate=EXACT)
    write_report(exact, tmp_path / "out")
    assert read_report(tmp_path / "out").comparisons[0].verdict.differing
