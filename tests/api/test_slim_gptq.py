"""A search among weights that GPTQ rounds, the head among them: each is rounded once for all combinations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import draftconv
from draftconv.api.slim import SlimOptions, prepare, slim
from draftconv.replay.gptq import GptqCalibration
from draftconv.search import run
from draftconv.search.choices import HEAD
from draftconv.search.outline import gptq_seconds
from draftconv.search.searching import NO_ROWS_YET
from tests.reference.test_fixtures import DATA

DRAFTER, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"
ENGINE = "sglang:h200"
ROOMY: dict[str, Any] = {"max_loss": 0.5, "candidates": 2, "target": TARGET}


@pytest.fixture(autouse=True)
def one_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers and head may be rounded by GPTQ, and nothing else is tried."""
    monkeypatch.setattr(run, "recipe_names", lambda: ("w4a16-gptq",))


def test_a_head_by_gptq_is_found_and_every_weight_is_rounded_once(
    halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded: list[str] = []
    real = GptqCalibration._round

    def counted(self: GptqCalibration, group: Any, *how: Any) -> None:
        rounded.extend(group)
        real(self, group, *how)

    monkeypatch.setattr(GptqCalibration, "_round", counted)
    result = slim(DRAFTER, tmp_path / "out", engine=ENGINE, trace=halves, **ROOMY)
    assert result.chosen is not None
    assert "lm_head INT4 per channel, mse by GPTQ" in result.chosen.planned.name
    assert f"{HEAD}.weight" in rounded
    assert len(rounded) == len(set(rounded))
    result.save(tmp_path / "report")
    how: dict[str, Any] = {"engines": ENGINE, "target": TARGET, "calibrate": halves, "calibrate_on": "half"}
    draftconv.quantize(DRAFTER, tmp_path / "again", recipe=str(tmp_path / "report/recipe.yaml"), **how)
    written, again = (tmp_path / name / "model.safetensors" for name in ("out", "again"))
    assert written.read_bytes() == again.read_bytes()


def test_a_dry_run_adds_what_gptq_takes(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = prepare(DRAFTER, SlimOptions(engine=ENGINE, trace=halves, **ROOMY))
    monkeypatch.setattr(run, "gptq_seconds", lambda _: 0.0)
    without = search.outline().seconds
    monkeypatch.setattr(run, "gptq_seconds", lambda alone: 1000.0 * len([*alone]))
    assert search.outline().seconds > without + 2000
    monkeypatch.undo()
    assert gptq_seconds(search.planned.measured.values()) > 0


def test_a_head_of_fewer_rows_is_not_rounded_by_gptq(halves: Path, written_text: Path) -> None:
    search = prepare(DRAFTER, SlimOptions(engine=ENGINE, trace=halves, counts=(str(written_text),), **ROOMY))
    left = [choice.name for choice in search.left_out if choice.why == NO_ROWS_YET]
    assert left
    assert all("rows" in name and "by GPTQ" in name for name in left)
    assert not any("by GPTQ" in drafter.name for drafter in search.planned.measured.values() if drafter.rows)
