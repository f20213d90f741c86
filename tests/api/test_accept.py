"""Single drafters on a trace: from directories to figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import draftconv
from draftconv.api.accept import accept, accept_exit_code
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report.acceptance.write import read_acceptance
from tests.reference.test_fixtures import DATA, DRAFTERS
from tests.traces.recorded import Recorded

DRAFTERS_AT = DATA / "drafters"
LLAMA, REDUCED = DRAFTERS_AT / "llama-eagle3", DRAFTERS_AT / "llama-eagle3-reduced"


@DRAFTERS
def test_every_fixture_has_the_accept_length_that_a_comparison_states(name: str, recorded: Recorded) -> None:
    trace = recorded(name.partition("-")[0])
    made = accept(DRAFTERS_AT / name, trace=trace)
    compared = draftconv.parity(DRAFTERS_AT / name, DRAFTERS_AT / name, trace=trace)
    counts = Counts.pooled(line.counts for line in compared.records if line.arm == name)
    (drafter,) = made.drafters
    assert drafter.whole is not None
    assert (drafter.whole.steps, drafter.whole.accepted) == (counts.steps, counts.accepted)
    estimate = compared.comparisons[0].verdict.estimate
    assert estimate is not None
    assert drafter.whole.length == estimate.reference
    assert made.arms[0] == compared.arms[0]
    assert made.about.trace == compared.about.trace
    assert (drafter.coverage is not None) == (name == "llama-eagle3-reduced")
    assert drafter.lengths[2] == drafter.whole
    assert accept_exit_code(made) == 0


def test_a_report_is_saved_and_read(recorded: Recorded, tmp_path: Path) -> None:
    made = accept([LLAMA, REDUCED], trace=recorded(), limit=3, min_al=1.5)
    made.save(tmp_path / "out")
    assert read_acceptance(tmp_path / "out") == made
    assert made.mapped == {"llama-eagle3-reduced": 1024}
    assert made.about.settings.keys() >= {"torch", "replay", "tables"}
    assert accept_exit_code(made) == 3


def test_records_reach_as_far_as_the_trace_allows(recorded: Recorded) -> None:
    assert accept(LLAMA, trace=recorded(), limit=1).longest == 4
    assert accept(LLAMA, trace=recorded(), limit=1, num_speculative_tokens=1).longest == 4
    made = accept(LLAMA, trace=recorded(), limit=1, num_speculative_tokens=5)
    assert (made.longest, len(made.drafters[0].lengths)) == (5, 5)


def test_progress_is_told_to_the_end(recorded: Recorded) -> None:
    told: list[tuple[str, int, int]] = []
    accept([LLAMA, REDUCED], trace=recorded(), limit=2, progress=lambda *row: told.append(row))
    last = {stage: (done, total) for stage, done, total in told}
    assert list(last) == ["reading", "replaying"]
    assert all(done == total > 0 for done, total in last.values())


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"num_speculative_tokens": 0}, "--num-speculative-tokens 0: too small"),
        ({"limit": 0}, "--limit 0: too small"),
        ({"num_speculative_tokens": 6}, "--num-speculative-tokens 6: the trace keeps 4"),
        ({"dtype": "int8"}, "--dtype int8: unknown"),
        ({"semantics": "nobody"}, "--semantics nobody: unknown"),
        ({"min_al": 0.5}, "--min-al 0.5: with 3 drafted tokens an accept length lies between 1 and 4"),
        ({"min_al": 4.0}, "--min-al 4: with 3"),
        ({"min_al": float("nan")}, "--min-al nan: with 3"),
        ({"min_al": float("inf")}, "--min-al inf: with 3"),
        ({"as_engine": ("nobody",)}, "nobody"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], what: str, recorded: Recorded) -> None:
    with pytest.raises(UsageError) as caught:
        accept(LLAMA, **({"trace": recorded()} | options))
    assert what in caught.value.what
    assert caught.value.cure or caught.value.why


def test_no_drafter_is_refused(recorded: Recorded) -> None:
    with pytest.raises(UsageError, match="there is no drafter to measure"):
        accept((), trace=recorded())


def test_what_is_no_drafter_is_refused(recorded: Recorded) -> None:
    with pytest.raises(BadCheckpoint):
        accept(DATA, trace=recorded())
