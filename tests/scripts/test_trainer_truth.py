"""scripts/trainer-truth: what counts as equal, as a disagreement and as a change, and that nothing is asked in vain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trainer_truth
from truth.trainers import cases
from truth.trainers.steps import KEPT, STEPS, TOLERANCE, Inputs, Steps, difference, reference_steps, shifted
from truth.trainers.table import PARTS, Row, Truth, changes, disagreements, load, save
from truth.trainers.trainer import NAMES, Origin, trainer

from draftconv.layouts import writable
from draftconv.reference.drafter import DrafterModel
from tests import tiny

ROW = Row("written", "speculators", "a", "equal", "equal", True)


def model(name: str, seed: int = 5, **facts: object) -> DrafterModel:
    torch.manual_seed(seed)
    drafter = DrafterModel(replace(tiny.VARIANTS[name].facts, **facts))  # type: ignore[arg-type]
    if drafter.facts.reduced_vocab:
        drafter.d2t.copy_(torch.tensor(tiny.VARIANTS[name].ids) - torch.arange(len(drafter.d2t)))
    return drafter.eval().requires_grad_(False)


def steps(drafter: DrafterModel) -> Steps:
    return reference_steps(drafter, Inputs.of(drafter.facts))


@pytest.mark.parametrize("name", ["llama", "3.1", "mla", "reduced", "frequency"])
def test_a_drafter_equals_itself(name: str) -> None:
    mine = steps(model(name))
    assert difference(mine, steps(model(name)))[0] == 0.0
    assert all(table.shape[0] == KEPT for table in (*mine.states, *mine.logits))


def test_rows_of_a_head_are_compared_by_the_target_s_ids() -> None:
    """In whatever order they are stored."""
    drafter = model("reduced")
    order = torch.randperm(len(drafter.d2t))
    ids = torch.arange(len(order)) + drafter.d2t
    shuffled = drafter.changed(
        tensors={"lm_head.weight": drafter.lm_head.weight[order], "d2t": ids[order] - torch.arange(len(order))}
    )
    assert difference(steps(drafter), steps(shuffled))[0] < 1e-6
    unmapped = drafter.changed(tensors={"lm_head.weight": drafter.lm_head.weight[order]})
    assert difference(steps(drafter), steps(unmapped))[0] > TOLERANCE


@pytest.mark.parametrize(
    "facts",
    [
        {"feedback": "post-norm"},
        {"norm_before_residual": True},
        {"rope": replace(tiny.BASE.rope, theta=10000.0)},
        {"eps": 1e-2},
    ],
)
def test_another_function_is_noticed(facts: dict[str, object]) -> None:
    drafter = model("llama")
    other = drafter.changed(replace(drafter.facts, **facts))  # type: ignore[arg-type]
    assert difference(steps(drafter), steps(other))[0] > TOLERANCE


def test_nothing_that_is_no_number_is_equal() -> None:
    mine = steps(model("llama"))
    broken = replace(mine, logits=tuple(table * torch.nan for table in mine.logits))
    assert difference(mine, broken)[0] == float("inf")


def test_steps_that_were_not_all_seen_are_none() -> None:
    with pytest.raises(ValueError, match="2 states"):
        Steps.of([torch.zeros(1, 16, 4)] * 2, [torch.zeros(1, 16, 4)] * STEPS, None)


def test_tokens_move_left() -> None:
    assert shifted(torch.tensor([[1, 2, 3]]), 1).tolist() == [[2, 3, 0]]


# ── the table ──────────────────────────────────────────────────────────────────────


def test_a_table_comes_back(tmp_path: Path) -> None:
    truth = Truth({"speculators": "speculators 0.9.0"}, "abc", "2026-11-23", (ROW,))
    save(truth, tmp_path / "t.json")
    assert load(tmp_path / "t.json") == truth


def test_what_is_told() -> None:
    wrong = replace(ROW, observed="differs", agrees=False, detail="logits of step 1: 0.3")
    assert disagreements([ROW, wrong]) == [
        "speculators: written: a: predicted equal, observed differs (logits of step 1: 0.3)"
    ]
    committed = Truth({}, "", "", (ROW, replace(ROW, case="gone"), replace(ROW, trainer="absent")))
    assert changes([ROW], committed) == ["speculators: written: gone: in the committed table alone"]
    told = changes([wrong, replace(ROW, case="new"), replace(ROW, case="gone")], committed)
    assert told == [
        "speculators: written: a: equal, differs; committed equal, equal",
        "speculators: written: new: not in the committed table",
    ]


def test_every_committed_row_agrees_and_every_trainer_was_asked() -> None:
    committed = load(trainer_truth.TABLE)
    assert disagreements(committed.rows) == []
    assert set(committed.versions) == set(NAMES) == {row.trainer for row in committed.rows}
    assert {row.part for row in committed.rows} == set(PARTS)
    assert len({(row.trainer, row.part, row.case) for row in committed.rows}) == len(committed.rows)


def test_what_is_refused_really_fails() -> None:
    """A refusal that the trainer does not need would keep a drafter from it."""
    refused = [row for row in load(trainer_truth.TABLE).rows if row.predicted == "refused"]
    assert refused and {row.observed for row in refused} <= {"stops", "differs", "not spelled"}
    assert sum(row.observed == "not spelled" for row in refused) < len(refused) / 4


def test_every_layout_of_a_trainer_has_a_judge() -> None:
    engines = {name for name, layout in writable().items() if layout.writer and layout.writer.serves}
    judged = {layout for layouts in cases.WRITTEN.values() for layout in layouts} - {"portable"}
    assert {layout.id for name, layout in writable().items() if name not in engines} == judged


# ── the command ────────────────────────────────────────────────────────────────────


def asked(rows: Sequence[Row]) -> list[str]:
    return [row.trainer for row in rows]


def answer(work: Path, name: str) -> list[Row]:
    """At the top of a module, for another process."""
    assert work.is_dir()
    return [replace(ROW, trainer=name)]


def wrong_answer(_: Path, name: str) -> list[Row]:
    return [replace(ROW, trainer=name, observed="stops", agrees=False)]


def only(*names: str) -> object:
    return lambda name: "" if name in names else "not here"


@pytest.mark.parametrize(("ask", "code"), [(answer, 0), (wrong_answer, 1)])
def test_a_check_says_what_it_found(
    ask: trainer_truth.Ask,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "trainers.json"
    save(Truth({}, "", "", (replace(ROW, trainer="specforge"),)), table)
    monkeypatch.setattr(trainer_truth, "TABLE", table)
    before = table.read_bytes()
    assert trainer_truth.main(["--check"], only("specforge"), ask) == code  # type: ignore[arg-type]
    assert table.read_bytes() == before
    told = capsys.readouterr()
    assert "speculators is skipped: not here" in told.err
    assert ("0 disagreements" in told.out) == (code == 0)


def test_rows_of_who_is_absent_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_truth, "TABLE", tmp_path / "trainers.json")
    monkeypatch.setattr(trainer_truth, "ROOT", tmp_path)
    monkeypatch.setattr(trainer_truth, "commit", lambda: "abc")
    monkeypatch.setattr(trainer_truth, "trainer", lambda name: SimpleNamespace(ORIGIN=SimpleNamespace(version=name)))
    kept = Truth({"torchspec": "TorchSpec 1"}, "", "", (replace(ROW, trainer="torchspec"),))
    save(kept, tmp_path / "trainers.json")
    assert trainer_truth.main([], only("specforge"), answer) == 0  # type: ignore[arg-type]
    found = json.loads((tmp_path / "trainers.json").read_text())
    assert [row["trainer"] for row in found["rows"]] == ["torchspec", "specforge"]
    assert found["versions"] == {"torchspec": "TorchSpec 1", "specforge": "specforge"}


def test_an_unknown_trainer_is_a_mistake() -> None:
    with pytest.raises(SystemExit):
        trainer_truth.main(["toy"])


def test_a_source_is_named_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = Origin("Toy", variable="TOY_SOURCE")
    monkeypatch.delenv(origin.variable, raising=False)
    assert origin.absent == "TOY_SOURCE names no source of it"
    monkeypatch.setenv(origin.variable, str(tmp_path / "nowhere"))
    assert "is no directory" in origin.absent
    monkeypatch.setenv(origin.variable, str(tmp_path))
    assert origin.absent == ""
    assert Origin("Toy", package="no-such-package").absent == "no-such-package is not installed"


@pytest.mark.parametrize("name", NAMES)
def test_every_trainer_has_what_a_judge_needs(name: str) -> None:
    asked = trainer(name)
    assert asked.ORIGIN.title
    assert all(callable(getattr(asked, part)) for part in ("load", "run", "build", "save"))
    assert bool(asked.ORIGIN.package) != bool(asked.ORIGIN.variable)
