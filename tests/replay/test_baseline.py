"""A candidate against a baseline is judged as against the reference itself, and only where that can be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.accept import accept
from draftconv.api.parity import parity
from draftconv.errors import BadReport, UsageError
from draftconv.report import read_report
from draftconv.report.acceptance.write import read_acceptance, write_acceptance
from draftconv.report.verdict import EXACT
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

LLAMA, REDUCED = DATA / "drafters/llama-eagle3", DATA / "drafters/llama-eagle3-reduced"

AGAIN = "llama-eagle3 again"
"""A replay runs the reference twice, to show that nothing but the drafter differs; a baseline is of one run."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(scope="module")
def baseline(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("baseline") / "out"
    write_acceptance(accept(LLAMA, trace=recorded()), out)
    return out / "accept.json"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = Path(shutil.copytree(LLAMA, tmp_path_factory.mktemp("broken") / "broken"))
    tensors = load_file(out / "model.safetensors")
    tensors["midlayer.mlp.down_proj.weight"] = torch.roll(tensors["midlayer.mlp.down_proj.weight"], 1, 0)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_equals_a_comparison_with_the_reference(depth: int, baseline: Path, broken: Path, recorded: Recorded) -> None:
    options: dict[str, Any] = {"trace": recorded(), "num_speculative_tokens": depth, "margin": 0.02}
    ordinary = parity(LLAMA, [broken, REDUCED], **options)
    found = parity(broken, [REDUCED], baseline=baseline, **options)
    arms = tuple(arm for arm in ordinary.arms if arm.name != AGAIN)
    assert found.arms == arms
    assert [arm.name for arm in arms] == ["llama-eagle3", "broken", "llama-eagle3-reduced"]
    for mine, theirs in zip(found.comparisons, ordinary.comparisons, strict=True):
        assert (mine.reference, mine.candidate) == (theirs.reference, theirs.candidate)
        assert mine.verdict == replace(theirs.verdict, aa=None)
        assert mine.verdict.estimate is not None
        assert mine.depths == theirs.depths
        assert len(mine.depths) == depth
        assert mine.diagnostics.discordance == theirs.diagnostics.discordance
        assert mine.diagnostics.every_position == theirs.diagnostics.every_position
        assert mine.diagnostics.discordance is not None
        assert mine.diagnostics.discordance.lost.value > 0
    records = {(record.arm, record.id): record for record in ordinary.records if record.arm != AGAIN}
    assert {(record.arm, record.id): record for record in found.records} == records
    assert found.about.trace == ordinary.about.trace
    assert found.about.settings == {**ordinary.about.settings, "reference": "a baseline of draftconv 0.1.0"}


def test_the_same_drafter_passes_and_its_report_comes_back(baseline: Path, recorded: Recorded, tmp_path: Path) -> None:
    found = parity(LLAMA, (), baseline=baseline.parent, trace=recorded())
    assert [arm.name for arm in found.arms] == ["llama-eagle3", "llama-eagle3 (2)"]
    (only,) = found.comparisons
    assert (only.verdict.gate, only.verdict.outcome) == (EXACT, "pass")
    found.save(tmp_path / "out")
    assert read_report(tmp_path / "out") == found


def test_a_quantized_candidate_has_the_margin_of_its_kind(baseline: Path, recorded: Recorded, tmp_path: Path) -> None:
    from draftconv.api.quantize import quantize

    quantize(LLAMA, tmp_path / "fp8", recipe="fp8", engines=("vllm",), target=str(DATA / "targets/llama"))
    found = parity(tmp_path / "fp8", (), baseline=baseline, trace=recorded())
    ordinary = parity(LLAMA, [tmp_path / "fp8"], trace=recorded())
    assert found.comparisons[0].verdict == replace(ordinary.comparisons[0].verdict, aa=None)
    assert found.comparisons[0].verdict.gate.margin == 0.01


# ── refusals ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "what", "cure"),
    [
        ({"limit": 7}, "the baseline is of another trace", "with the same --limit"),
        ({"dtype": "float64"}, "the baseline has replay: float32 on cpu; this run has float64 on cpu", "repeat the"),
        ({"semantics": "sglang"}, "the baseline has tables: as vllm takes them; this run has as sglang", "repeat the"),
        ({"num_speculative_tokens": 5}, "--num-speculative-tokens 5: the baseline has counts up to 4", "give 4 or"),
        ({"num_speculative_tokens": 6}, "--num-speculative-tokens 6: the trace keeps 4", "make a trace"),
        ({"fake_quant": ("w4a16",)}, "--fake-quant changes the reference itself", "leave out --fake-quant"),
        ({"attribute": True}, "--attribute puts single tensors into the reference", "leave out --attribute"),
        ({"self_test": True}, "--self-test breaks the reference itself", "leave out --self-test"),
        ({"extend": "out"}, "--extend adds requests of both drafters", "leave out --extend"),
    ],
)
def test_what_needs_the_reference_or_another_run_is_refused(
    changes: dict[str, Any], what: str, cure: str, baseline: Path, recorded: Recorded
) -> None:
    with pytest.raises(UsageError) as caught:
        parity(LLAMA, (), baseline=baseline, **({"trace": recorded()} | changes))
    assert what in caught.value.what
    assert cure in (caught.value.cure or "")


def test_another_trace_is_refused(baseline: Path, recorded: Recorded) -> None:
    with pytest.raises(UsageError, match="the baseline is of another trace"):
        parity(LLAMA, (), baseline=baseline, trace=recorded(first=8))


def test_a_baseline_is_of_one_drafter(recorded: Recorded, tmp_path: Path) -> None:
    accept([LLAMA, REDUCED], trace=recorded(), limit=2).save(tmp_path / "out")
    with pytest.raises(UsageError, match="the baseline is of 2 drafters: llama-eagle3, llama-eagle3-reduced"):
        parity(LLAMA, (), baseline=tmp_path / "out", trace=recorded(), limit=2)


def test_a_baseline_with_the_same_limit_is_taken(recorded: Recorded, tmp_path: Path) -> None:
    accept(LLAMA, trace=recorded(), limit=2).save(tmp_path / "out")
    found = parity(LLAMA, (), baseline=tmp_path / "out", trace=recorded(), limit=2)
    assert len(found.records) == 4


def test_a_file_that_is_no_baseline_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    for name in ("nowhere", "other.json"):
        (tmp_path / "other.json").write_text('{"format": "draftconv-parity-report"}')
        with pytest.raises(BadReport):
            parity(LLAMA, (), baseline=tmp_path / name, trace=recorded())


def test_no_candidate_is_refused(baseline: Path, recorded: Recorded) -> None:
    from draftconv.api.parity import _against_baseline
    from draftconv.replay.options import ParityOptions

    with pytest.raises(UsageError, match="there is no candidate to compare with the baseline"):
        _against_baseline((), ParityOptions(trace=recorded(), baseline=baseline))


def test_records_of_another_trace_under_this_ones_hash_are_refused(
    baseline: Path, recorded: Recorded, tmp_path: Path
) -> None:
    """What only an edit can make: all of it follows from its records, but they are of other requests."""
    other = accept(LLAMA, trace=recorded(first=8))
    mine = read_acceptance(baseline)
    write_acceptance(type(mine).of(mine.about, 4, None, mine.arms, {}, other.records), tmp_path / "out")
    assert json.loads((tmp_path / "out/accept.json").read_text())["about"]["trace"] == mine.about.trace
    with pytest.raises(BadReport, match="its requests are not those of the trace that it names"):
        parity(LLAMA, (), baseline=tmp_path / "out", trace=recorded())
