"""scripts/engine-truth: a disagreement fails it and is named, answers are kept, and the committed table has no gap.

No engine is asked here: stand-ins answer in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import engine_truth
import pytest
from truth import dtypes, loader, loader_cases, matcher
from truth.store import Store, digest
from truth.table import Part, Row, Truth, changes, load, plain, save

from draftconv.engines import parse_engine
from draftconv.engines.rules import BrokenRule, LoadVerdict
from draftconv.engines.vllm import ENGINE, RULES

GOOD = Row("loader", "a: as converted", "loads", "loads", True)
BAD = Row("loader", "a: no hidden_norm", "loads", "mis-read: weights", False, "hidden_norm holds something else")


class Parts:
    """A stand-in for all parts."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows

    def __call__(self, part: Part, work: Path, store: Store) -> Iterator[Row]:
        assert store.version == "0.32.0"
        assert work.name == part
        assert work.is_dir()
        assert store.directory.parent in (work.parent, work.parent.parent)
        return (row for row in self.rows if row.part == part)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed table with one row, in place of the real one."""
    path = tmp_path / "docs" / "engine-truth.json"
    path.parent.mkdir()
    save(Truth("vLLM 0.32.0, CPU", "abc", "2026-11-21", (GOOD,)), path)
    monkeypatch.setattr(engine_truth, "TABLE", path)
    monkeypatch.setattr(engine_truth, "commit", lambda: "abc")
    return path


def run(*argv: str, rows: engine_truth.Rows) -> int:
    return engine_truth.main(argv, start=lambda: "0.32.0", rows=rows)


@pytest.mark.usefixtures("table")
def test_agreement_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--check", rows=Parts(GOOD)) == 0
    assert capsys.readouterr().out == "1 cases, 0 disagreements\n"


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
    (tmp_path / "work" / "made-by-other-code" / "bases").mkdir(parents=True)
    run("--work", str(tmp_path / "work"), rows=Parts(GOOD))
    assert not (tmp_path / "work" / "made-by-other-code").exists()


def test_a_part_alone_leaves_the_table(table: Path, tmp_path: Path) -> None:
    before = table.read_bytes()
    assert run("matcher", "--work", str(tmp_path / "work"), rows=Parts(GOOD, BAD)) == 0
    assert table.read_bytes() == before


@pytest.mark.usefixtures("table")
def test_an_unknown_part_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as stopped:
        run("loaders", rows=Parts(GOOD))
    assert stopped.value.code == 2


def test_paths_of_this_machine_are_not_kept() -> None:
    said = "OSError: /home/someone/case/config.json is not there: model.layers.8/x, https://a.example/b"
    assert plain(said) == "OSError: … is not there: model.layers.8/x, https://a.example/b"
    assert len(plain("x" * 1000)) == 240


class TestStore:
    def test_an_answer_is_asked_for_once(self, tmp_path: Path) -> None:
        answers = iter([[1, 2], [3]])
        store = Store(tmp_path, "0.32.0")
        assert store.get("loader a", ("x",), lambda: next(answers)) == [1, 2]
        assert store.get("loader a", ("x",), lambda: next(answers)) == [1, 2]
        assert Store(tmp_path, "0.32.0").get("loader a", ("x",), lambda: next(answers)) == [1, 2]

    @pytest.mark.parametrize(("version", "depends"), [("0.33.0", "x"), ("0.32.0", "y")])
    def test_it_belongs_to_what_it_depends_on(self, tmp_path: Path, version: str, depends: str) -> None:
        Store(tmp_path, "0.32.0").get("loader a", ("x",), lambda: 1)
        assert Store(tmp_path, version).get("loader a", (depends,), lambda: 2) == 2

    def test_contents_of_directories_count_and_notes_beside_them_do_not(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        before = digest(tmp_path)
        (tmp_path / "README.md").write_text("a card")
        assert digest(tmp_path) == before
        (tmp_path / "config.json").write_text('{"a": 1}')
        assert digest(tmp_path) != before


class TestJudging:
    """A row of the loader: verdict, reason and aspects have to be vLLM's."""

    def verdict(self, *codes: str) -> LoadVerdict:
        rules = {rule.code: rule for rule in RULES}
        return LoadVerdict(parse_engine(loader.SPEC), tuple(BrokenRule(rules[code], "because") for code in codes))

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
        row = loader._judged("a", self.verdict(*codes), {"observed": observed, "detail": ""}, "", (), codes)
        assert row.agrees is agrees

    def test_refused_for_another_reason(self) -> None:
        answer = {"observed": "refused", "detail": "OSError: disk full"}
        row = loader._judged("a", self.verdict("vllm-prefix"), answer, "no module", (), ("vllm-prefix",))
        assert not row.agrees
        assert row.detail == "refused for another reason: OSError: disk full"

    def test_the_rule_in_question_has_to_speak(self) -> None:
        answer = {"observed": "refused", "detail": ""}
        row = loader._judged("a", self.verdict("vllm-prefix"), answer, "", {"vllm-shape"}, ("vllm-shape",))
        assert not row.agrees
        assert "vllm-shape did not speak" in row.detail


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load(engine_truth.ROOT / "docs" / "engine-truth.json")


class TestCommitted:
    """docs/engine-truth.json."""

    UNSEEN = frozenset({
        "vllm-mla-fc-norm", "vllm-eagle31", "vllm-indexer", "vllm-kernel", "vllm-taps", "vllm-taps-fallback",
        "vllm-joined-scales",
    })  # fmt: skip
    """Rules of other versions, of GPUs and of Model Runner V2: a CPU build of 0.32 does not show them."""

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

    def test_evidence_is_run_where_a_case_observed_it(self, truth: Truth) -> None:
        observed = {code for row in truth.rows for code in row.rules}
        serious = [rule for rule in ENGINE.rules if rule.effect in ("refused", "mis-read")]
        assert {rule.code for rule in serious} - observed == self.UNSEEN - {"vllm-taps-fallback"}
        assert {rule.code for rule in serious if rule.evidence != "run"} == self.UNSEEN - {"vllm-taps-fallback"}

    def test_every_mis_reading_has_an_aspect(self) -> None:
        misreading = {rule.code for rule in RULES if rule.effect == "mis-read"}
        assert misreading - loader.ASPECTS.keys() == self.UNSEEN - {"vllm-taps-fallback", "vllm-kernel"}

    def test_the_fixed_part_covers_every_rule(self) -> None:
        fixed = loader_cases.fixed()
        covered = {rule for case in loader_cases.CASES if case.name in fixed for rule in case.rules}
        assert covered == {rule for case in loader_cases.CASES for rule in case.rules}
        assert {
            (case.base, case.declared["quant_method"]) for case in matcher.CASES if case.name in matcher.fixed()
        } == {(case.base, case.declared["quant_method"]) for case in matcher.CASES}
