"""What each recipe costs and brings on one drafter and one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftconv.api.quantize import quantize
from draftconv.api.recipes import recipe_costs_for, recipes_for
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.step_bytes import step_bytes
from draftconv.drafter.targets import find_target
from draftconv.errors import Refused, UsageError
from draftconv.layouts.drafter_reader import DrafterReader
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

DRAFTER, TARGET = DATA / "drafters/llama-eagle3", DATA / "targets/llama"
MACHINE = "vllm:b200"


def test_every_recipe_that_runs_is_there_and_every_other_has_a_reason() -> None:
    costs = recipe_costs_for(None, engines=MACHINE, drafter=DRAFTER, target=TARGET)
    runs, refused = recipes_for(None, engines=MACHINE)
    assert {cost.offer.recipe for cost in costs.costs} == {offer.recipe for offer in runs}
    assert {choice.name for choice in costs.left_out} == {offer.recipe for offer in refused}
    assert all(choice.why for choice in costs.left_out)
    sizes = [cost.planned.reads.per_step(3) for cost in costs.costs]
    assert sizes == sorted(sizes, reverse=True)
    assert all(cost.replayed is None for cost in costs.costs)


def test_what_is_told_is_what_is_written(tmp_path: Path) -> None:
    (cost,) = recipe_costs_for("w4a16", engines=MACHINE, drafter=DRAFTER, target=TARGET).costs
    quantize(DRAFTER, tmp_path / "out", recipe="w4a16", engines=MACHINE, target=TARGET)
    written = DrafterReader(None, None, accept_detected=True).read(
        open_checkpoint(tmp_path / "out"), find_target(str(TARGET), None)
    )
    assert step_bytes(written, lent_head=False) == cost.planned.reads
    tensors = {**written.tensors, **written.qparams}
    assert sum(ref.nbytes for ref in tensors.values()) == cost.planned.file_bytes


def test_a_trace_tells_what_is_kept(recorded: Recorded) -> None:
    costs = recipe_costs_for("w4a16", engines=MACHINE, drafter=DRAFTER, target=TARGET, trace=recorded())
    (cost,) = costs.costs
    assert costs.prompts == 4
    assert cost.replayed is not None
    assert cost.replayed.requests == 4
    assert 0.5 < cost.replayed.ratio < 1.5
    document = costs.document()
    assert document["recipes"][0]["replayed"]["prompts"] == 4  # type: ignore[index]


def test_static_activations_are_replayed_under_scales_of_the_other_half(recorded: Recorded) -> None:
    costs = recipe_costs_for("fp8-tensor", engines=MACHINE, drafter=DRAFTER, target=TARGET, trace=recorded())
    (cost,) = costs.costs
    assert cost.replayed is not None
    assert 0.9 < cost.replayed.ratio < 1.1
    assert cost.planned.file_bytes < costs.whole.file_bytes


def test_a_short_calibration_is_told_of(recorded: Recorded) -> None:
    costs = recipe_costs_for(
        "w4a16-gptq", engines=MACHINE, drafter=DRAFTER, target=TARGET, trace=recorded(count=32, length=32)
    )
    (cost,) = costs.costs
    (warning,) = cost.warnings
    assert "rows for each of" in warning
    assert any(str(block) == f"w4a16-gptq: {warning}" for block in costs.blocks())
    assert costs.document()["recipes"][0]["warnings"] == [warning]  # type: ignore[index]


def test_what_is_multiplied_is_told_role_by_role_and_how_it_is_known() -> None:
    (cost,) = recipe_costs_for("w4a16-g128-all", engines=MACHINE, drafter=DRAFTER, target=TARGET).costs
    assert cost.offer.multiplied.startswith("INT4 per group 128 x 16 bit; lm_head: FP8 E4M3 per channel x FP8 E4M3")
    assert cost.offer.known == "not run on hardware"


def test_activations_that_no_replay_computes_are_sized_only(recorded: Recorded) -> None:
    costs = recipe_costs_for("nvfp4", engines=MACHINE, drafter=DRAFTER, target=TARGET, trace=recorded())
    (cost,) = costs.costs
    assert cost.replayed is None
    assert cost.planned.file_bytes < costs.whole.file_bytes


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"engines": "vllm"}, UsageError, "names no hardware"),
        ({"engines": ("vllm:b200", "sglang:b200")}, UsageError, "one drafter on one machine"),
        ({"drafter": None}, UsageError, "one drafter on one machine"),
        ({"num_speculative_tokens": 7}, UsageError, "the trace keeps 4"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    recorded: Recorded, options: dict[str, object], error: type[Exception], says: str
) -> None:
    asked = {"engines": MACHINE, "drafter": DRAFTER, "target": TARGET, "trace": recorded()} | options
    with pytest.raises(error, match=says):
        recipe_costs_for(None, **asked)  # type: ignore[arg-type]


def test_a_quantized_drafter_is_no_measure(tmp_path: Path) -> None:
    quantize(DRAFTER, tmp_path / "out", recipe="w4a16", engines=MACHINE, target=TARGET)
    with pytest.raises(Refused, match="is quantized already"):
        recipe_costs_for(None, engines=MACHINE, drafter=tmp_path / "out", target=TARGET)
