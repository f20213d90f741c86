"""A search among activations whose scales are measured beforehand: on the half that it sees, as `quantize` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import draftconv
from draftconv.api.slim import SlimOptions, prepare, slim
from draftconv.errors import Void
from draftconv.replay.static_scales import StaticScales
from draftconv.search import run
from tests.reference.test_fixtures import DATA

DRAFTER, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"
ENGINE = "trtllm:h200"
ROOMY: dict[str, Any] = {"max_loss": 0.5, "candidates": 1, "target": TARGET}


@pytest.fixture(params=["fp8-tensor", "w4a8-awq"])
def one_recipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only one to be searched among."""
    monkeypatch.setattr(run, "recipe_names", lambda: (request.param,))


@pytest.mark.usefixtures("one_recipe")
def test_static_scales_are_searched_certified_and_made_again(halves: Path, tmp_path: Path) -> None:
    result = slim(DRAFTER, tmp_path / "out", engine=ENGINE, trace=halves, **ROOMY)
    assert result.chosen is not None
    assert "static" in result.chosen.planned.name
    record = json.loads((tmp_path / "out/draftconv.json").read_text())["quantization"]
    assert record["calibration"]["on"] == "half"
    result.save(tmp_path / "report")
    assert "--calibrate-on half" in (tmp_path / "report/slim.md").read_text()
    how: dict[str, Any] = {"engines": ENGINE, "target": TARGET, "calibrate": halves, "calibrate_on": "half"}
    draftconv.quantize(DRAFTER, tmp_path / "again", recipe=str(tmp_path / "report/recipe.yaml"), **how)
    written, again = (tmp_path / name / "model.safetensors" for name in ("out", "again"))
    assert written.read_bytes() == again.read_bytes()
    assert draftconv.verify(tmp_path / "out", DRAFTER, target=TARGET, calibrate=halves).passed


def test_other_scales_than_those_that_are_written_are_noticed(
    halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = StaticScales.of

    def small(self: StaticScales, *asked: Any) -> dict[str, Tensor]:
        return {module: scale / 64 for module, scale in real(self, *asked).items()}

    monkeypatch.setattr(run, "recipe_names", lambda: ("fp8-tensor",))
    monkeypatch.setattr(StaticScales, "of", small)
    with pytest.raises(Void, match="accepts something else than was certified"):
        slim(DRAFTER, tmp_path / "out", engine=ENGINE, trace=halves, **ROOMY | {"max_loss": 0.9})
    assert list(tmp_path.iterdir()) == []


def test_a_pruned_head_has_inputs_of_its_own(
    halves: Path, written_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "recipe_names", lambda: ("fp8-tensor",))
    result = slim(DRAFTER, tmp_path / "out", engine=ENGINE, trace=halves, counts=(str(written_text),), **ROOMY)
    assert result.chosen is not None
    assert result.chosen.planned.rows is not None
    assert "static" in result.chosen.planned.name
    assert draftconv.verify(tmp_path / "out", DRAFTER, target=TARGET, calibrate=halves).passed


def test_what_no_replay_computes_is_left_out(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "recipe_names", lambda: ("nvfp4",))
    search = prepare(DRAFTER, SlimOptions(engine="vllm:b200", trace=halves, **ROOMY))
    (left,) = search.left_out
    assert "are not simulated" in left.why
    # Hopper multiplies the same file in 16 bits, which a replay can do.
    search = prepare(DRAFTER, SlimOptions(engine="vllm:h200", trace=halves, **ROOMY))
    assert search.left_out == ()
