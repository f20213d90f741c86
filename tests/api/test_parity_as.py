"""Parity as an engine multiplies: which arithmetic is replayed, who chose it, and that the report says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from draftconv.api.convert import convert
from draftconv.api.parity import parity
from draftconv.api.quantize import quantize
from draftconv.errors import Refused, UsageError
from draftconv.reference.accept_length import Counts
from draftconv.report import Report, read_report, write_report
from draftconv.report.extension import ExtensionTerms
from draftconv.report.model import SimulatedArithmetic
from draftconv.report.records import Record
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

LLAMA, TARGET = DATA / "drafters/llama-eagle3", str(DATA / "targets/llama")
INT8 = "INT8 per token, dynamic"
Made = Callable[..., Path]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The drafter by a recipe for engines."""

    def small(recipe: str, *engines: str, name: str = "") -> Path:
        out = tmp_path / (name or recipe)
        quantize(LLAMA, out, recipe=recipe, engines=engines, target=TARGET)
        return out

    return small


@pytest.fixture
def trace(recorded: Recorded) -> Path:
    return recorded(count=16)


def counts(report: Report, arm: str) -> list[Counts]:
    """Of an arm, request by request: what its arithmetic decides."""
    return [line.counts for line in report.records if line.arm == arm]


def told(report: Report, arm: str) -> SimulatedArithmetic:
    found = report.arm(arm).arithmetic
    assert found is not None
    return found


def replayed(candidate: Path, trace: Path, **options: Any) -> tuple[list[Counts], SimulatedArithmetic]:
    report = parity(LLAMA, [candidate], trace=trace, **options)
    return counts(report, candidate.name), told(report, candidate.name)


def test_a_w4a8_file_is_the_w4a16_one_where_activations_are_ignored(made: Made, trace: Path) -> None:
    """And not on a CPU, where vLLM rounds them: its own form of the recipe, with the same integers."""
    b200, cpu, plain = made("w4a8", "vllm:b200"), made("w4a8", "vllm:cpu", name="cpu"), made("w4a16", "vllm:b200")
    (w4a16, _), (declared, _) = replayed(plain, trace), replayed(b200, trace, as_engine="file")
    assert w4a16 != declared  # the rounding of activations can be seen in these counts

    as_b200, said = replayed(b200, trace, as_engine="vllm:b200")
    assert as_b200 == w4a16
    assert (said.engine, said.chosen_by, said.activations) == ("vllm@0.33.0:b200", "--as", "16 bit")
    assert "Marlin ignores the activation scheme" in said.executed
    as_mi325x, said = replayed(b200, trace, as_engine="vllm:mi325x")
    assert (as_mi325x, said.activations, said.evidence) == (w4a16, "16 bit", "read")

    as_cpu, said = replayed(cpu, trace, as_engine="vllm:cpu")
    assert (as_cpu, said.activations, said.evidence) == (declared, INT8, "run")


def test_the_record_decides_where_nobody_does(made: Made, trace: Path) -> None:
    small = made("w4a8", "vllm:b200")
    found, said = replayed(small, trace)
    assert found == replayed(small, trace, as_engine="vllm:b200")[0]
    assert (said.engine, said.chosen_by, said.undecided) == ("vllm@0.33.0:b200", "draftconv.json", "")


@pytest.mark.parametrize("edited", [True, False])
def test_a_record_that_is_not_its_own_decides_nothing(edited: bool, made: Made, trace: Path) -> None:
    small = made("w4a8", "vllm:b200")
    record = small / "draftconv.json"
    if edited:
        record.write_text(record.read_text().replace(":b200", ":h200"))
    else:
        record.unlink()
    found, said = replayed(small, trace)
    assert found == replayed(small, trace, as_engine="file")[0]
    assert (said.engine, said.chosen_by, said.activations) == ("", "", INT8)
    assert "no draftconv.json of its own" in said.undecided


def test_a_record_of_several_engines_decides_nothing(made: Made, trace: Path) -> None:
    small = made("w4a8", "vllm:b200", "vllm:h200")
    _, said = replayed(small, trace)
    assert said.undecided == "its draftconv.json names vllm@0.33.0:b200, vllm@0.33.0:h200"
    assert said.activations == INT8
    _, said = replayed(small, trace, as_engine="vllm:h200")
    assert (said.activations, said.undecided) == ("16 bit", "")


def test_what_an_engine_refuses_is_not_replayed_as_it(made: Made, trace: Path) -> None:
    small = made("w4a8", "vllm:b200")
    with pytest.raises(Refused, match=r"w4a8 cannot be replayed as sglang@0\.5\.23:b200") as caught:
        replayed(small, trace, as_engine="sglang:b200")
    assert "no scheme with quantized activations" in caught.value.why
    assert f"--as {small}=file" in caught.value.cure
    with pytest.raises(Refused, match="cannot be replayed as vllm"):
        replayed(made("w4a8", "vllm:cpu", name="cpu"), trace, as_engine="vllm:b200")


def test_what_an_engine_would_read_otherwise_is_not_replayed_as_it(made: Made, trace: Path) -> None:
    small = made("w4a8", "vllm:b200")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": [2, 4, 5, 5]}))
    with pytest.raises(Refused, match="cannot be replayed as vllm"):
        replayed(small, trace, as_engine="vllm:b200", layout=f"{small}=vllm", accept_detected=True)


def test_what_nobody_knows_is_undecided_and_replayed_as_the_file_says(made: Made, trace: Path) -> None:
    small = made("w4a8", "vllm:b200")
    found, said = replayed(small, trace, as_engine="vllm@0.1:b200")
    assert found == replayed(small, trace, as_engine="file")[0]
    assert (said.engine, said.executed, said.activations) == ("vllm@0.1:b200", "", INT8)
    assert "nothing is known of versions before" in said.undecided


def test_a_recipe_is_simulated_as_an_engine_runs_it(trace: Path) -> None:
    options: dict[str, Any] = {"trace": trace, "fake_quant": ("w4a8",)}
    w4a16 = parity(LLAMA, (), trace=trace, fake_quant=("w4a16",))
    as_b200 = parity(LLAMA, (), **options, as_engine="vllm:b200")
    plain = parity(LLAMA, (), **options)
    name = "llama-eagle3 as w4a8"
    assert counts(as_b200, name) == counts(w4a16, "llama-eagle3 as w4a16") != counts(plain, name)
    assert "activations 16 bit" in as_b200.arm(name).quantization
    assert as_b200.arm(name).content != plain.arm(name).content
    assert told(plain, name).undecided == "no engine is named"
    assert told(plain, name).activations == INT8
    with pytest.raises(Refused, match=r"recipe w4a8 has no form on sglang@0\.5\.23:b200") as caught:
        parity(LLAMA, (), **options, as_engine="sglang:b200")
    assert "--fake-quant w4a16 has one there" in caught.value.cure


def test_nvfp4_is_replayed_where_only_its_weights_count(trace: Path) -> None:
    """FP4 activations are not simulated; Marlin on Hopper ignores them."""
    with pytest.raises(Refused):
        parity(LLAMA, (), trace=trace, fake_quant=("nvfp4",), as_engine="vllm:b200")
    report = parity(LLAMA, (), trace=trace, fake_quant=("nvfp4",), as_engine="vllm:h200")
    assert told(report, "llama-eagle3 as nvfp4").activations == "16 bit"


# ── several drafters ─────────────────────────────────────────────────────────────


def test_every_candidate_has_its_own(made: Made, trace: Path) -> None:
    one, two = made("w4a8", "vllm:b200"), made("w4a8", "vllm:b200", name="two")
    report = parity(LLAMA, [one, two], trace=trace, fake_quant=("w4a8",), as_engine=(f"{two}=file", "vllm:h200"))
    assert [told(report, name).activations for name in ("w4a8", "two")] == ["16 bit", INT8]
    assert told(report, "w4a8").engine == told(report, "llama-eagle3 as w4a8").engine == "vllm@0.33.0:h200"
    named = parity(LLAMA, (), trace=trace, fake_quant=("w4a8",), as_engine="w4a8=vllm:b200")
    assert told(named, "llama-eagle3 as w4a8").engine == "vllm@0.33.0:b200"


def test_a_drafter_with_floats_is_the_same_everywhere(trace: Path) -> None:
    report = parity(LLAMA, [LLAMA], trace=trace, as_engine="sglang:mi325x")  # which does not even load it
    assert [arm.arithmetic for arm in report.arms] == [None] * len(report.arms)


def test_a_quantized_reference_is_multiplied_like_its_candidates(made: Made, trace: Path) -> None:
    """Otherwise a lossless repack of a W4A8 drafter would seem to draft otherwise."""
    published = made("w4a8")
    (published / "draftconv.json").unlink()
    packed = published.parent / "packed"
    convert(published, packed, to="vllm", pack="compressed-pack", target=TARGET)
    report = parity(published, [packed], trace=trace, as_engine="vllm:b200")
    assert report.outcome == "pass"
    assert (told(report, "w4a8").chosen_by, told(report, "w4a8").activations) == ("the candidates", "16 bit")
    apart = parity(published, [packed], trace=trace, as_engine=(f"{published}=file", f"{packed}=vllm:b200"))
    assert apart.outcome == "fail"
    assert (told(apart, "w4a8").chosen_by, told(apart, "w4a8").activations) == ("--as", INT8)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("vllm:b200", "vllm:h200"), "--as says two things of every candidate"),
        (("other=vllm:b200",), "--as other=vllm:b200 is about no drafter"),
        (("vlm",), "unknown engine vlm"),
        (("w4a8=vllm:b20",), "vllm:b20"),
    ],
)
def test_what_cannot_be_asked(values: tuple[str, ...], said: str, trace: Path) -> None:
    with pytest.raises(UsageError, match=said):
        parity(LLAMA, (), trace=trace, fake_quant=("w4a8",), as_engine=values)


# ── the report ─────────────────────────────────────────────────────────────────────


def test_every_form_of_the_report_says_what_was_multiplied(made: Made, trace: Path, tmp_path: Path) -> None:
    small = made("w4a8", "vllm:b200")
    report = parity(LLAMA, [small], trace=trace, fake_quant=("w4a8",))
    write_report(report, tmp_path / "report")
    decided = "w4a8 was multiplied as vllm@0.33.0:b200 does (named in its draftconv.json): 4-bit storage"
    undecided = "What an engine multiplies is undecided: no engine is named."
    sentences = [str(block) for block in report.blocks()]
    for text in (decided, undecided):
        assert any(text in sentence for sentence in sentences)
        assert text in (tmp_path / "report/report.html").read_text()
        assert text in (tmp_path / "report/junit.xml").read_text()
        assert text in (tmp_path / "report/report.md").read_text().replace("\\", "")
    assert any("[read, not run on hardware]" in sentence for sentence in sentences)
    again = read_report(tmp_path / "report")
    assert told(again, "w4a8") == told(report, "w4a8")
    document = json.loads((tmp_path / "report/report.json").read_text())
    arms = {arm["name"]: arm["arithmetic"] for arm in document["arms"]}
    assert arms["llama-eagle3"] is None
    assert arms["w4a8"]["activations"] == "16 bit"
    assert arms["w4a8"]["evidence"] == "read"


def test_an_extension_keeps_the_arithmetic(made: Made, recorded: Recorded, tmp_path: Path) -> None:
    small = made("w4a8", "vllm:b200")
    write_report(parity(LLAMA, [small], trace=recorded()), tmp_path / "earlier")
    more = recorded(first=8, count=8)
    with pytest.raises(UsageError, match="has activations 16 bit against 16 bit, this run has 16 bit against INT8"):
        parity(LLAMA, [small], trace=more, extend=tmp_path / "earlier", as_engine="file")
    parity(LLAMA, [small], trace=more, extend=tmp_path / "earlier")
    assert "activations" in ExtensionTerms.__dataclass_fields__


def test_a_report_from_before_is_read(made: Made, trace: Path, tmp_path: Path) -> None:
    """It tells nothing of activations, so no extension of it is taken for one of the same arithmetic."""
    small = made("w4a8", "vllm:b200")
    shutil.rmtree(tmp_path / "old", ignore_errors=True)
    write_report(parity(LLAMA, [small], trace=trace), tmp_path / "old")
    file = tmp_path / "old/report.json"
    document = json.loads(file.read_text())
    for arm in document["arms"]:
        del arm["arithmetic"]
    file.write_text(json.dumps(document))
    old = read_report(tmp_path / "old")
    assert (old.arm("w4a8").activations, old.arm("llama-eagle3").activations) == ("not told", "16 bit")
    assert all(isinstance(line, Record) for line in old.records)
