"""accept.json is a baseline: it comes back as it was, and no edit of it is believed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from draftconv.errors import BadReport, WriteError
from draftconv.report.acceptance.model import AcceptanceReport
from draftconv.report.acceptance.write import (
    junit,
    read_acceptance,
    refuse_acceptance_place,
    write_acceptance,
)
from tests.report.acceptance.made import ABOUT, arm, record, report

FILES = {"accept.json", "accept.md", "accept.html", "junit.xml"}
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(scope="module")
def made() -> AcceptanceReport:
    return report("whole", "reduced", prompts=6, roots=12, mapped={"reduced": 30})


@pytest.fixture(scope="module")
def once(made: AcceptanceReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("written") / "out"
    write_acceptance(made, out)
    return out


@pytest.fixture
def written(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / "out"))


def test_a_report_comes_back(made: AcceptanceReport, written: Path) -> None:
    assert {path.name for path in written.iterdir()} == FILES
    assert read_acceptance(written) == read_acceptance(written / "accept.json") == made


def test_a_report_without_a_step_comes_back(tmp_path: Path) -> None:
    empty = AcceptanceReport.of(ABOUT, 4, 2.0, [arm()], {}, [record("a", [])])
    empty.save(tmp_path / "out")
    assert read_acceptance(tmp_path / "out") == empty


def test_the_same_report_gives_the_same_bytes(made: AcceptanceReport, written: Path, tmp_path: Path) -> None:
    write_acceptance(made, tmp_path / "twice")
    for name in FILES:
        assert (tmp_path / "twice" / name).read_bytes() == (written / name).read_bytes(), name


def test_a_report_replaces_only_such_a_report(made: AcceptanceReport, written: Path, tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="exists already"):
        write_acceptance(made, written)
    write_acceptance(made, written, overwrite=True)
    (written / "notes.md").write_text("precious")
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    for refuse in (refuse_acceptance_place, partial(write_acceptance, made)):
        with pytest.raises(WriteError, match=r"notes\.md"):
            refuse(written, overwrite=True)
    assert {path.name: path.read_bytes() for path in written.iterdir()} == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "accept.json").write_text('{"format": "other"}')
    with pytest.raises(WriteError, match=r"no accept\.json of ours"):
        refuse_acceptance_place(other, overwrite=True)


# ── edits ──────────────────────────────────────────────────────────────────────────


def edited(directory: Path, edit: Edit, *, sign: bool) -> None:
    """Change accept.json; `sign`: with the hash that its records then have."""
    path = directory / "accept.json"
    document = json.loads(path.read_text())
    edit(document)
    if sign:
        rows = json.dumps(document["records"], separators=(",", ":"), ensure_ascii=False)
        document["records_sha256"] = hashlib.sha256(rows.encode()).hexdigest()
    path.write_text(json.dumps(document))


def first(d: dict[str, Any], name: str = "whole") -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in d["records"] if row["arm"] == name)
    return found


def roots(count: int) -> Edit:
    return lambda d: first(d).update(accepted=first(d)["accepted"][:count])


def test_what_no_figure_shows_is_not_believed_either(written: Path) -> None:
    """A root where no step of any K starts: the figures stay the same, a comparison would not."""
    document = json.loads((written / "accept.json").read_text())
    made = read_acceptance(written)
    unseen = (
        (number, min(roots))
        for number, one in enumerate(made.records)
        if (roots := {*range(len(one.accepted))} - {root for k in range(1, 5) for root, *_ in one.steps(k)})
    )
    number, root = next(unseen)
    row = document["records"][number]["accepted"]
    row[root] = 0 if row[root] else 1
    (written / "accept.json").write_text(json.dumps(document))
    with pytest.raises(BadReport, match="its records are not those that it was written with"):
        read_acceptance(written)
    edited(written, lambda d: d, sign=True)
    assert read_acceptance(written).drafters == made.drafters  # nothing else would have told


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda d: d.update(version=2), "version: input should be 1"),
        (lambda d: d.update(format="draftconv-parity-report"), "format: input should be 'draftconv-acceptance'"),
        (lambda d: d.update(more=1), "more: extra inputs"),
        (lambda d: d.pop("records_sha256"), "records_sha256: field required"),
        (lambda d: d.update(longest=0), "longest: input should be greater"),
        (lambda d: d.update(longest=True), "longest: input should be a valid integer"),
        (lambda d: d.update(longest=5), "its figures of whole are not of every K up to 5"),
        (lambda d: d.update(longest=10**12), "its figures of whole are not of every K"),
        (lambda d: d.update(longest=3), "not of every K up to 3"),
        (lambda d: d["about"].update(depth=5), "its figures are of K = 5, its records end at 4"),
        (lambda d: d["about"].update(depth=0), "its figures are of K = 0"),
        (lambda d: d["about"].update(depth=2), "its figures are not those of its records"),
        (lambda d: d.update(min_al=2.0), "its figures are not those of its records"),
        (lambda d: d["arms"].clear(), "it names no drafter"),
        (lambda d: d["arms"].append(d["arms"][0]), "it names one drafter twice"),
        (lambda d: d["arms"].append({**d["arms"][0], "name": "third"}), "it has no record of third"),
        (lambda d: d["arms"].pop(), "the vocabulary map of reduced, which is none of its drafters"),
        (lambda d: d["mapped"].update(other=3), "the vocabulary map of other, which is none of its drafters"),
        (lambda d: d["mapped"].clear(), "cannot draft, which can draft all"),
        (lambda d: d["mapped"].update(whole=3), "its figures are not those of its records"),
        (lambda d: d["mapped"].update(reduced=31), "its figures are not those of its records"),
        (lambda d: d["drafters"].reverse(), "its figures are not those of its records"),
        (lambda d: d["drafters"][0].update(outcome="fail"), "its figures are not those of its records"),
        (lambda d: d["drafters"][0]["whole"]["length"].update(value=3.0), "its figures are not those"),
        (lambda d: d["drafters"][0].update(whole=None), "its figures are not those of its records"),
        (lambda d: d["drafters"][0].update(lengths=[]), "is in no figure"),
        (lambda d: d["drafters"][1]["coverage"].update(undraftable=0), "its figures are not those"),
        (lambda d: d["records"].clear(), "it has no record of"),
        (lambda d: d["records"].pop(0), "are not those of"),
        (lambda d: d["records"].append(first(d)), "it has a request of whole twice"),
        (lambda d: d["records"].insert(1, d["records"].pop(0)), "its requests of reduced are not those of whole"),
        (lambda d: first(d).update(arm="x"), "request 000 of x is of none of its drafters"),
        (lambda d: first(d).update(arm="reduced"), "it has a request of reduced twice"),
        (lambda d: first(d).update(id="x"), "its requests of reduced are not those of whole"),
        (lambda d: first(d).update(category="x"), "its requests of reduced are not those of whole"),
        (lambda d: first(d).update(language="x"), "its requests of reduced are not those of whole"),
        (lambda d: first(d).update(tokens="x"), "its requests of reduced are not those of whole"),
        (lambda d: first(d).update(prompt=11), "its requests of reduced are not those of whole"),
        (lambda d: first(d).update(prompt=0), "request 000 of whole has 12 roots"),
        (lambda d: first(d).update(counted=12), "request 000 of whole has 12 roots for 12 tokens"),
        (roots(11), "request 000 of whole has 11 roots for 13 tokens"),
        (lambda d: first(d).update(accepted=[], counted=-4), "request 000 of whole has 0 roots for -4 tokens"),
        (lambda d: first(d)["accepted"].__setitem__(0, 5), "request 000 of whole accepted what nobody drafted"),
        (lambda d: first(d)["accepted"].__setitem__(0, -1), "request 000 of whole accepted what nobody drafted"),
        (lambda d: first(d)["accepted"].__setitem__(0, 1.5), "input should be a valid integer"),
        (lambda d: first(d, "reduced").update(unmapped=[[15, 1]]), "has tokens outside its text"),
        (lambda d: first(d, "reduced").update(unmapped=[[-1, 1]]), "has tokens outside its text"),
        (lambda d: first(d, "reduced").update(unmapped=[[3, 1], [3, 2]]), "has tokens outside its text"),
        (lambda d: first(d, "reduced").update(unmapped=[[4, 1], [3, 2]]), "has tokens outside its text"),
        (lambda d: first(d, "reduced").update(unmapped=[[3, -1]]), "has tokens that are none"),
        (lambda d: first(d, "reduced").update(unmapped=[[i, 1] for i in range(15)]), "accepted tokens that its"),
        (lambda d: first(d, "reduced").update(unmapped=[]), "its figures are not those of its records"),
        (lambda d: first(d).update(unmapped=[[3, 1]]), "cannot draft, which can draft all"),
    ],
)  # fmt: skip
def test_an_edit_is_not_believed(edit: Edit, what: str, written: Path) -> None:
    edited(written, edit, sign=what != "records_sha256: field required")
    with pytest.raises(BadReport, match=what) as caught:
        read_acceptance(written)
    assert caught.value.cure


def test_a_prompt_in_two_categories_is_not_believed(tmp_path: Path) -> None:
    """Of a single drafter, where no other one has its requests."""
    made = report(prompts=4, roots=12)
    write_acceptance(made, tmp_path / "out")
    edited(tmp_path / "out", lambda d: d["records"][1].update(cluster="000"), sign=True)
    with pytest.raises(BadReport, match="prompt 000 is in two categories"):
        read_acceptance(tmp_path / "out")


@pytest.mark.parametrize("data", [b"", b"\xff", b"[1]", b"{" * 10_000, b'{"format": NaN}', b'{"a": 1, "a": 2}'])
def test_what_is_no_report_is_refused(written: Path, data: bytes) -> None:
    (written / "accept.json").write_bytes(data)
    with pytest.raises(BadReport):
        read_acceptance(written)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadReport, match=r"accept\.json"):
        read_acceptance(tmp_path)


# ── junit ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("min_al", "prompts", "roots", "result"),
    [
        (None, 40, 48, "skipped"),
        (1.2, 40, 48, None),
        (3.9, 40, 48, "failure"),
        (1.2, 8, 48, "error"),
        (1.2, 40, 0, "error"),
    ],
)
def test_junit_has_a_case_for_each_drafter(min_al: float | None, prompts: int, roots: int, result: str | None) -> None:
    made = report("one", "two", min_al=min_al, prompts=prompts, roots=roots)
    suites = ElementTree.fromstring(junit(made))
    cases = list(suites.iter("testcase"))
    assert len(cases) == 2
    for case, name in zip(cases, ("one", "two"), strict=True):
        assert (case.get("name") or "").startswith(name)
        found = [child.tag for child in case if child.tag in ("skipped", "failure", "error")]
        assert found == ([] if result is None else [result])
        if result in ("failure", "error"):
            assert "; ".join(made.drafters[0 if name == "one" else 1].reasons) in "".join(case.itertext())
