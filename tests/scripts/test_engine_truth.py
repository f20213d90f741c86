"""scripts/engine-truth: a disagreement fails it and is named, answers are kept, and the committed table has no gap.

No engine is asked here: stand-ins answer in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_truth
import pytest
from truth.judges import Judge, find_judge
from truth.judging import judged, predicted
from truth.observed import UNKNOWABLE
from truth.store import Store, digest
from truth.table import Part, Row, Truth, changes, load, plain, save
from truth.vllm import dtypes, joined, loader, loader_cases, matcher, runner

from draftconv.engines import parse_engine
from draftconv.engines.rules import BrokenRule, LoadVerdict
from draftconv.engines.vllm import RULES

GOOD = Row("loader", "a: as converted", "loads", "loads", True)
BAD = Row("loader", "a: no hidden_norm", "loads", "mis-read: weights", False, "hidden_norm holds something else")


ASKING = Path(loader.__file__)


class Parts:
    """A stand-in for all parts."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows

    def __call__(self, judge: Judge, part: Part, work: Path, store: Store) -> Iterator[Row]:
        assert judge.name == "vllm"
        assert store.version == "0.32.0"
        assert work.name == part
        assert work.is_dir()
        assert store.directory.parent in (work.parent, work.parent.parent)
        return (row for row in self.rows if row.part == part)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed table with one row, in place of the real one."""
    path = tmp_path / "docs" / "engine-truth" / "vllm.json"
    path.parent.mkdir(parents=True)
    save(Truth("vLLM 0.32.0, CPU", "abc", "2026-11-21", (GOOD,)), path)
    monkeypatch.setattr(engine_truth, "TABLES", path.parent)
    monkeypatch.setattr(engine_truth, "commit", lambda: "abc")
    return path


def started() -> str:
    return "0.32.0"


def run(*argv: str, rows: engine_truth.Rows) -> int:
    judge = dataclasses.replace(find_judge("vllm"), start=started)
    return engine_truth.main(("vllm", *argv), judge=judge, rows=rows)


@pytest.mark.usefixtures("table")
def test_agreement_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--check", rows=Parts(GOOD)) == 0
    assert capsys.readouterr().out == "vllm: 1 cases, 0 disagreements\n"


@pytest.mark.parametrize("options", [["--check"], []])
@pytest.mark.usefixtures("table")
def test_a_disagreement_fails_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert run(*options, "--work", str(tmp_path / "work"), rows=Parts(GOOD, BAD)) == 1
    told = capsys.readouterr()
    line = "loader: a: no hidden_norm: predicted loads, observed mis-read: weights (hidden_norm holds something else)"
    assert line in told.out.splitlines()
    assert f"engine-truth: {line}" in told.err.splitlines()


@pytest.mark.usefixtures("table")
def test_another_observation_than_the_committed_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    both = dataclasses.replace(GOOD, predicted="refused", observed="refused")
    assert run("--check", rows=Parts(both)) == 1
    assert "loader: a: as converted: observed refused, committed loads" in capsys.readouterr().out


@pytest.mark.usefixtures("table")
def test_a_case_that_is_not_in_the_table_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--check", rows=Parts(dataclasses.replace(GOOD, case="b: as converted"))) == 1
    assert "loader: b: as converted: not in the committed table" in capsys.readouterr().out


def test_counts_may_differ_from_one_cpu_to_another() -> None:
    before = Row("quantized", "a@ct-channel", "201 steps", "201 steps", True)
    truth = Truth("vLLM 0.32.0, CPU", "abc", "2026-11-21", (before,))
    assert changes([dataclasses.replace(before, predicted="202 steps", observed="202 steps")], truth) == []


@pytest.mark.parametrize(
    "row",
    [
        dataclasses.replace(GOOD, observed="refused"),
        dataclasses.replace(GOOD, agrees=False),
        Row("conversions", "a: torchspec, converted", "199 steps", "198 steps", True),
    ],
)
def test_a_committed_row_that_contradicts_itself_fails(
    row: Row, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(Truth("vLLM 0.32.0, CPU", "abc", "2026-11-21", (row,)), table)
    assert run("--check", rows=Parts()) == 1
    assert f"{row.part}: {row.case}: the committed row says" in capsys.readouterr().out


def test_a_check_writes_nothing(table: Path) -> None:
    before = table.read_bytes()
    run("--check", rows=Parts(GOOD, BAD))
    assert table.read_bytes() == before


def test_a_whole_run_writes_the_table(table: Path, tmp_path: Path) -> None:
    run("--work", str(tmp_path / "work"), rows=Parts(GOOD, BAD))
    assert load(table).rows == (GOOD, BAD)
    assert (load(table).engine, load(table).draftconv) == ("vLLM 0.32.0, CPU", "abc")


@pytest.mark.usefixtures("table")
def test_directories_of_other_code_are_not_used_again(tmp_path: Path) -> None:
    (tmp_path / "work" / "vllm" / "made-by-other-code" / "bases").mkdir(parents=True)
    run("--work", str(tmp_path / "work"), rows=Parts(GOOD))
    assert not (tmp_path / "work" / "vllm" / "made-by-other-code").exists()


def test_a_part_alone_leaves_the_table(table: Path, tmp_path: Path) -> None:
    before = table.read_bytes()
    assert run("matcher", "--work", str(tmp_path / "work"), rows=Parts(GOOD, BAD)) == 0
    assert table.read_bytes() == before


def test_a_part_is_written_beside_the_others(table: Path, tmp_path: Path) -> None:
    other, older = Row("matcher", "m", "fc", "fc", True), dataclasses.replace(GOOD, case="gone")
    save(Truth("vLLM 0.31.0, CPU", "abc", "2026-11-21", (older, other)), table)
    assert run("loader", "--write", "--work", str(tmp_path / "work"), rows=Parts(GOOD)) == 0
    assert load(table).rows == (GOOD, other)
    assert load(table).engine == "vLLM 0.32.0, CPU"


@pytest.mark.parametrize("argv", [["loaders"], ["--write"], ["loader", "--check", "--write"]])
def test_usage_errors(table: Path, argv: list[str]) -> None:
    before = table.read_bytes()
    with pytest.raises(SystemExit) as stopped:
        run(*argv, rows=Parts(GOOD))
    assert stopped.value.code == 2
    assert table.read_bytes() == before


def test_paths_of_this_machine_are_not_kept() -> None:
    said = "OSError: /home/someone/case/config.json is not there: model.layers.8/x, https://a.example/b"
    assert plain(said) == "OSError: … is not there: model.layers.8/x, https://a.example/b"
    assert len(plain("x" * 1000)) == 240


class TestStore:
    def test_an_answer_is_asked_for_once(self, tmp_path: Path) -> None:
        answers = iter([[1, 2], [3]])
        store = Store(tmp_path, "0.32.0", ASKING)
        assert store.get("loader a", ("x",), lambda: next(answers)) == [1, 2]
        assert store.get("loader a", ("x",), lambda: next(answers)) == [1, 2]
        assert Store(tmp_path, "0.32.0", ASKING).get("loader a", ("x",), lambda: next(answers)) == [1, 2]

    @pytest.mark.parametrize(("version", "depends"), [("0.33.0", "x"), ("0.32.0", "y")])
    def test_it_belongs_to_what_it_depends_on(self, tmp_path: Path, version: str, depends: str) -> None:
        Store(tmp_path, "0.32.0", ASKING).get("loader a", ("x",), lambda: 1)
        assert Store(tmp_path, version, ASKING).get("loader a", (depends,), lambda: 2) == 2

    def test_contents_of_directories_count_and_notes_beside_them_do_not(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        before = digest(tmp_path)
        (tmp_path / "README.md").write_text("a card")
        assert digest(tmp_path) == before
        (tmp_path / "config.json").write_text('{"a": 1}')
        assert digest(tmp_path) != before


class TestJudging:
    """A row of the loader: verdict, reason and aspects have to be vLLM's."""

    def row(self, codes: tuple[str, ...], answer: dict[str, str], **more: Any) -> Row:
        rules = {rule.code: rule for rule in RULES}
        broken = tuple(BrokenRule(rules[code], "because") for code in codes)
        verdict = LoadVerdict(parse_engine(loader.SPEC), broken)
        return judged("a", verdict, predicted(verdict, loader.ASPECTS), answer, **more)

    @pytest.mark.parametrize(
        ("codes", "observed", "agrees"),
        [
            ((), "loads", True),
            ((), "mis-read: weights", False),
            (("vllm-missing-tensor",), "mis-read: weights", True),
            (("vllm-missing-tensor",), "mis-read: feedback", False),
            (("vllm-missing-tensor",), "mis-read: feedback, weights", False),
            (("vllm-missing-tensor",), "loads", False),
            (("vllm-prefix", "vllm-missing-tensor"), "refused", True),
        ],
    )
    def test_aspects(self, codes: tuple[str, ...], observed: str, agrees: bool) -> None:
        row = self.row(codes, {"observed": observed, "detail": ""}, rules=codes)
        assert row.agrees is agrees

    def test_refused_for_another_reason(self) -> None:
        answer = {"observed": "refused", "detail": "OSError: disk full"}
        row = self.row(("vllm-prefix",), answer, says="no module")
        assert not row.agrees
        assert row.detail == "refused for another reason: OSError: disk full"

    def test_the_rule_in_question_has_to_speak(self) -> None:
        answer = {"observed": "refused", "detail": ""}
        row = self.row(("vllm-prefix",), answer, rules=("vllm-shape",))
        assert not row.agrees
        assert "vllm-shape did not speak" in row.detail


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load(engine_truth.ROOT / "docs" / "engine-truth" / "vllm.json")


class TestCommitted:
    """docs/engine-truth/vllm.json."""

    def test_no_disagreement_is_left(self, truth: Truth) -> None:
        assert [row.case for row in truth.rows if not row.agrees] == []

    @pytest.mark.parametrize(
        ("part", "least"),
        [("loader", 60), ("matcher", 40), ("conversions", 30), ("quantized", 20), ("replay", 5), ("controls", 3)],
    )
    def test_it_is_large_enough(self, truth: Truth, part: Part, least: int) -> None:
        cases = [row.case for row in truth.of(part)]
        assert len(cases) == len(set(cases)) >= least

    def test_it_holds_the_cases_that_there_are(self, truth: Truth) -> None:
        held = {row.case for row in truth.rows}
        assert held >= {case.name for case in loader_cases.CASES}
        assert held >= {case.name for case in matcher.CASES}
        assert held >= set(map(dtypes.case, dtypes.WAYS))
        assert held >= runner.names() | joined.names()

    def test_every_mis_reading_has_an_aspect(self) -> None:
        misreading = {rule.code for rule in RULES if rule.effect == "mis-read"}
        apart = {"vllm-taps"}  # of Model Runner V2, which rows of its own are about
        assert misreading - loader.ASPECTS.keys() == apart | (misreading & UNKNOWABLE["vllm"].keys())

    def test_the_fixed_part_covers_every_rule(self) -> None:
        fixed = loader_cases.fixed()
        covered = {rule for case in loader_cases.CASES if case.name in fixed for rule in case.rules}
        assert covered == {rule for case in loader_cases.CASES for rule in case.rules}
        assert {
            (case.base, case.declared["quant_method"]) for case in matcher.CASES if case.name in matcher.fixed()
        } == {(case.base, case.declared["quant_method"]) for case in matcher.CASES}
