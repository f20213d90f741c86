"""What a card reads of the steps behind an output, in records that may hold anything."""

from __future__ import annotations

from typing import Any

import pytest

from draftconv.conversion.card_steps import CoveredText, Steps, pruned_rows
from tests import opening
from tests.reference.test_fixtures import DATA

WHOLE, PRUNED = {"name": "whole"}, {"name": "whole-512-rows"}
PRUNING = {
    "rows": 2048,
    "forced": 3,
    "domains": [{"name": "all", "weight": 1.0, "tokens": 100, "held": 10, "covered": 0.9, "places": []}],
    "trace": None,
}
CALIBRATED = {"calibration": {"requests": 2}}
ROUNDED: dict[str, Any] = {"calibration": None}


def steps_of(*steps: dict[str, object]) -> Steps:
    record, *earlier = steps
    return Steps.of({**record, "earlier": earlier})


@pytest.mark.parametrize(
    ("steps", "source", "done", "calibrated"),
    [
        ([{"source": WHOLE}], WHOLE, "converted", False),
        ([{"source": WHOLE, "pruning": PRUNING}], WHOLE, "pruned", False),
        ([{"source": WHOLE, "quantization": ROUNDED}], WHOLE, "quantized", False),
        (
            [{"source": PRUNED, "quantization": CALIBRATED}, {"source": WHOLE, "pruning": PRUNING}],
            WHOLE,
            "pruned and quantized",
            True,
        ),
        ([{"source": PRUNED, "quantization": CALIBRATED}, {"source": WHOLE}], PRUNED, "quantized", True),
        ([{"source": PRUNED}, {"source": WHOLE, "quantization": CALIBRATED}], PRUNED, "converted", False),
    ],
)
def test_the_source_is_one_that_a_person_has(
    steps: list[dict[str, object]], source: dict[str, str], done: str, calibrated: bool
) -> None:
    found = steps_of(*steps)
    assert (found.source, found.done, found.calibrated) == (source, done, calibrated)


def test_what_was_left_out_is_read_from_the_newest_pruning() -> None:
    facts = opening.read(DATA / "drafters/llama-eagle3-reduced").facts
    pruned = steps_of({"source": PRUNED}, {"source": WHOLE, "pruning": PRUNING})
    found = pruned_rows(pruned, facts)
    assert found is not None
    assert (found.kept, found.rows, found.forced, found.trace) == (facts.draft_vocab, 2048, 3, "")
    assert found.domains == (CoveredText("all", 100, 10, 0.9),)
    assert pruned_rows(steps_of({"source": WHOLE}), facts) is None


@pytest.mark.parametrize(
    "edited", [{"rows": "many"}, {"rows": None}, {"forced": []}, {"trace": 1}, {"domains": [{"tokens": "x"}]}]
)
def test_an_earlier_record_that_was_edited_is_not_told_of(edited: dict[str, object]) -> None:
    facts = opening.read(DATA / "drafters/llama-eagle3-reduced").facts
    steps = steps_of({"source": PRUNED}, {"source": WHOLE, "pruning": PRUNING | edited})
    assert pruned_rows(steps, facts) is None
