"""GPTQ from a trace to a file: what is written and recorded, gone on with, verified, simulated and refused."""

from __future__ import annotations

import errno
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.parity import parity
from draftconv.api.quantize import QuantizeOptions, prepare, quantize
from draftconv.api.verify import verify
from draftconv.errors import DraftconvError, Refused, UsageError, WriteError
from draftconv.quantization import gptq as arithmetic
from draftconv.quantization.recipes import find_recipe
from draftconv.replay import first_steps, gptq
from draftconv.replay.gptq import GptqCalibration
from draftconv.replay.gptq_files import GptqFiles
from draftconv.traces.trace import open_trace
from tests import quantized
from tests.keywords import keywords
from tests.traces.recorded import Recorded
from tests.traces.recorded import recorded as recorded

LLAMA, MLA = "llama-eagle3-reduced", "mla-eagle3"
SOURCE = quantized.source(LLAMA)
SEQUENTIAL = """
about: as w4a16-gptq, with inputs of a drafter that is quantized already
weights: {dtype: int4, granularity: channel, scale_rule: mse, scale_dtype: weight}
rounding: gptq
sequential: true
exclude: [embed, lm_head, norms, kv_b, a_projections, fc]
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def trace(recorded: Recorded) -> Path:
    return recorded("llama", count=8, length=64)


def write(out: Path, trace: Path, recipe: str = "w4a16-gptq", source: Path = SOURCE) -> dict[str, bytes]:
    quantize(source, out, **keywords(quantized.options(LLAMA, recipe, trace=trace)))
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def calibration(trace: Path, name: str = LLAMA, *, sequential: bool = False) -> GptqCalibration:
    drafter = quantized.read(quantized.source(name), name)
    decided = prepare(quantized.source(name), quantized.options(name, "w4a16-gptq", trace=trace)).decided
    scheme = replace(find_recipe("w4a16-gptq").scheme, sequential=sequential)
    sources = {weight: drafter.tensors[weight] for weight in decided.selection.quantized}
    return GptqCalibration(drafter, sources, dict.fromkeys(sources, scheme), open_trace(trace))


def kept(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith(f".{out.name}"))


# ── what is written ────────────────────────────────────────────────────────────────


def test_other_values_lie_under_the_same_scales(trace: Path, tmp_path: Path) -> None:
    write(tmp_path / "gptq", trace)
    quantized.write(tmp_path / "nearest", LLAMA, "w4a16")
    ours, nearest = load_file(tmp_path / "gptq/model.safetensors"), load_file(tmp_path / "nearest/model.safetensors")
    assert ours.keys() == nearest.keys()
    other = {name for name in ours if not torch.equal(ours[name], nearest[name])}
    assert other == {name for name in ours if name.endswith("weight_packed")}
    assert kept(tmp_path / "gptq") == []


def test_the_record_tells_how_each_weight_was_rounded(trace: Path, tmp_path: Path) -> None:
    write(tmp_path / "out", trace)
    told = json.loads((tmp_path / "out/draftconv.json").read_text())["quantization"]
    assert told["recipe"]["rounding"] == "gptq"
    assert told["calibration"]["trace"] == f"sha256:{open_trace(trace).digest}"
    assert set(told["gptq"]) == set(told["quantized"])
    for weight in told["gptq"].values():
        assert weight["damping"] in (None, *arithmetic.DAMPINGS)
        assert weight["rows"] == 7 * 126  # of eight prompts one is held out
        assert weight["error"] <= weight["nearest"]
    assert any(weight["damping"] for weight in told["gptq"].values())


def test_a_short_trace_is_told(trace: Path) -> None:
    done = prepare(SOURCE, quantized.options(LLAMA, "w4a16-gptq", trace=trace))
    (line,) = (line for line in done.warnings if "rows for each" in line)
    assert "1.7 rows for each of 512 inputs" in line
    assert any(
        re.fullmatch(r"GPTQ will take about \d+ seconds and \d.* of memory, by the rate.*", str(b))
        for b in done.blocks()
    )


def test_the_same_bytes_come_of_a_run_that_was_stopped(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write(tmp_path / "out", trace)
    monkeypatch.setattr(gptq, "KEPT_EVERY", 0.0)
    collect, seen = first_steps.collect, []

    def stopped(*args: object, **how: object) -> None:
        seen.append(1)
        if len(seen) == 5:
            raise KeyboardInterrupt
        collect(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(gptq, "collect", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "again/out", trace)
    assert not (tmp_path / "again/out").exists()
    assert kept(tmp_path / "again/out") == [".out.calibration"]
    choose, groups = arithmetic.choose, []

    def stopped_later(*args: object, **how: object) -> object:
        groups.append(1)
        if len(groups) == 3:
            raise KeyboardInterrupt
        return choose(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(gptq, "choose", stopped_later)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "again/out", trace)
    assert len(seen) == 5 + 8 - 4  # the first four requests were not read again
    assert write(tmp_path / "again/out", trace) == whole
    assert len(seen) == 5 + 8 - 4
    assert len(groups) == 3 + 2
    assert kept(tmp_path / "again/out") == []


def test_what_another_command_kept_is_not_taken(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(gptq, "choose", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "out", trace)
    group = write(tmp_path / "out", trace, "w4a16-g128-gptq")
    assert group == write(tmp_path / "other/out", trace, "w4a16-g128-gptq")


def test_weights_of_one_layer_see_what_was_quantized_before_them(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "sequential.yaml").write_text(SEQUENTIAL)
    write(tmp_path / "in-sequence", trace, str(tmp_path / "sequential.yaml"))
    write(tmp_path / "at-once", trace)
    one, other = (quantized.floats_of(tmp_path / name, LLAMA) for name in ("in-sequence", "at-once"))
    same = {module for module in one if torch.equal(one[module], other[module])}
    assert same == {f"layers.0.self_attn.{name}_proj" for name in "qkv"}
    stages = calibration(trace, sequential=True).stages
    assert [len(stage.groups) for stage in stages] == [1, 1, 1, 1]
    assert [len(stage.quantized) for stage in stages] == [0, 3, 4, 6]
    assert [len(stage.groups) for stage in calibration(trace).stages] == [4]


def test_second_moments_that_do_not_fit_are_collected_in_turn(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = calibration(trace)
    monkeypatch.setattr(gptq, "MOMENTS_AT_ONCE", 600_000)
    in_turn = calibration(trace)
    assert [len(stage.groups) for stage in in_turn.stages] == [1, 2, 1]
    for number, found in enumerate((at_once, in_turn)):
        directory = tmp_path / str(number)
        directory.mkdir()
        found.run(GptqFiles(directory))
    assert at_once.records == in_turn.records


# ── verified and simulated ─────────────────────────────────────────────────────────


def test_with_the_trace_every_value_is_proven_and_without_it_every_scale(trace: Path, tmp_path: Path) -> None:
    out, target = tmp_path / "out", str(quantized.target(LLAMA).path)
    write(out, trace)
    assert verify(out, SOURCE, target=target, calibrate=trace).passed
    without = verify(out, SOURCE, target=target)
    assert without.result == "claimed"
    (how,) = (row.how for row in without.tensors if row.what == "layers.0.mlp.down_proj.weight")
    assert "under the scales that the recipe gives of the source" in how
    tensors = load_file(out / "model.safetensors")
    (scale,) = (name for name in tensors if name.endswith("down_proj.weight_scale"))
    tensors[scale][5] *= 1.5
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    found = verify(out, SOURCE, target=target)
    assert found.result == "fail"
    assert any("a scale of row 5 is not the one that" in row.how for row in found.tensors)


def test_parity_simulates_the_very_weights(trace: Path, recorded: Recorded, tmp_path: Path) -> None:
    judge = recorded("llama", first=8, count=4, length=16)
    write(tmp_path / "out", trace)
    report = parity(SOURCE, [tmp_path / "out"], trace=judge, fake_quant=("w4a16-gptq",), calibrate=trace)
    lines = {arm.name: [line.counts for line in report.records if line.arm == arm.name] for arm in report.arms}
    assert lines["out"] == lines[f"{LLAMA} as w4a16-gptq"]
    with pytest.raises(UsageError, match="have texts in common"):
        parity(SOURCE, [], trace=trace, fake_quant=("w4a16-gptq",), calibrate=trace)
    with pytest.raises(Refused, match="rounds by GPTQ") as without:
        parity(SOURCE, [], trace=judge, fake_quant=("w4a16-gptq",))
    assert "--calibrate" in without.value.cure
    with pytest.raises(UsageError, match="--calibrate is for --fake-quant"):
        parity(SOURCE, [], trace=judge, fake_quant=("w4a16",), calibrate=trace)


@pytest.mark.parametrize("name", [MLA, "mla-eagle3.1"])
def test_it_errs_less_on_text_that_it_has_not_seen(name: str, recorded: Recorded, tmp_path: Path) -> None:
    found = calibration(recorded("mla", count=8, length=64), name)
    directory = tmp_path / "work"
    directory.mkdir()
    found.run(GptqFiles(directory))
    assert all(record.error <= record.nearest for record in found.records.values())
    assert sum(record.error < 0.95 * record.nearest for record in found.records.values()) >= 4
    assert set(found.records) == set(found.wanted)


# ── refused ────────────────────────────────────────────────────────────────────────


def refused(out: Path, trace: Path | None, recipe: str = "w4a16-gptq", source: Path = SOURCE) -> DraftconvError:
    with pytest.raises(DraftconvError) as error:
        quantize(source, out, **keywords(quantized.options(LLAMA, recipe, trace=trace)))
    assert not out.exists()
    assert kept(out) == []
    return error.value


def test_a_trace_that_does_not_fit_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "too short for GPTQ: 273 rows" in refused(out, recorded("llama", count=4, length=29)).what
    assert "a single prompt" in refused(out, recorded("llama", count=1, length=64)).what
    assert "is of another kind of target" in refused(out, recorded("mla", count=8, length=64)).what
    assert "holds boundaries" in refused(out, recorded("llama", boundaries=(2, 4), count=8, length=64)).what
    assert "--calibrate TRACE" in refused(out, None).cure


def test_parity_refuses_a_calibration_on_another_target(recorded: Recorded, tmp_path: Path) -> None:
    judge = recorded("llama", first=8, count=4, length=16)

    def refuses(calibrate: Path) -> UsageError:
        with pytest.raises(UsageError) as error:
            parity(quantized.source("llama-eagle3"), [], trace=judge, fake_quant="w4a16-gptq", calibrate=calibrate)
        return error.value

    assert "of another kind of target: mla is deepseek" in refuses(recorded("mla", count=8, length=64)).what
    edited = Path(shutil.copytree(recorded("llama", count=8, length=64), tmp_path / "edited"))
    index = json.loads((edited / "trace.json").read_text())
    index["tables"]["embed_tokens"]["sha256"] = "0" * 64
    (edited / "trace.json").write_text(json.dumps(index))
    assert "has another embed_tokens than that of --trace, of llama" in refuses(edited).what
    other = Path(shutil.copytree(recorded("llama", count=8, length=64), tmp_path / "other"))
    its_own = Path(shutil.copytree(judge, tmp_path / "judge"))
    (other / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    (its_own / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 1}}}))
    judge = its_own
    assert "were made with two tokenizers" in refuses(other).what


@pytest.mark.parametrize("name", ["llama-eagle3", LLAMA, "llama-eagle3.1"])
def test_the_trace_tells_which_layers_a_drafter_captures(name: str, trace: Path, tmp_path: Path) -> None:
    """Nobody names a target: the files leave the layers open, and the trace has as many as its target."""
    source, out = quantized.source(name), tmp_path / "out"
    done = quantize(source, out, recipe="w4a16-gptq", engines="vllm:b200", calibrate=trace)
    assert not done.doubts
    assert verify(out, source, calibrate=trace).passed


def test_a_trace_of_other_weights_than_the_drafters_is_doubted(recorded: Recorded) -> None:
    done = prepare(quantized.source(MLA), QuantizeOptions(
        recipe="w4a16-gptq", engines="vllm:b200", calibrate=recorded("llama", count=8, length=64)
    ))  # fmt: skip
    (doubt,) = (line for line in done.warnings if "the embed_tokens of mla-eagle3 is not that of llama" in line)
    assert "accepts less on this trace" in doubt
    ours = recorded("mla", count=8, length=64)
    assert not prepare(quantized.source(MLA), QuantizeOptions(recipe="w4a16-gptq", calibrate=ours)).doubts


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("target_model_type", "deepseek_v3", "made for a target of the family deepseek (deepseek_v3)"),
        ("target_num_hidden_layers", 61, "made for a target of 61 layers, by its config.json; llama is of 8"),
    ],
)
def test_a_drafter_whose_config_names_another_target_is_refused(
    key: str, value: object, says: str, trace: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(quantized.source("llama-eagle3"), tmp_path / "source"))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(UsageError) as error:
        prepare(source, QuantizeOptions(recipe="w4a16-gptq", calibrate=trace))
    assert says in error.value.what


def test_another_target_of_the_same_sizes_is_refused(trace: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(quantized.DATA / "targets/llama", tmp_path / "target"))
    (weights,) = target.glob("*.safetensors")
    tensors = load_file(weights)
    (embedding,) = (name for name in tensors if name.endswith("embed_tokens.weight"))
    tensors[embedding][0, 0] += 1
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(UsageError, match="another embed_tokens"):
        prepare(SOURCE, quantized.options(LLAMA, "w4a16-gptq", trace=trace, target=str(target)))


def test_another_tokenizer_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    theirs, ours = {"model": {"vocab": {"a": 0}}}, {"model": {"vocab": {"a": 1}}}
    trace = Path(shutil.copytree(recorded("llama", count=8, length=64), tmp_path / "trace"))
    target = Path(shutil.copytree(quantized.DATA / "targets/llama", tmp_path / "target"))
    (trace / "tokenizer.json").write_text(json.dumps(theirs))
    (target / "tokenizer.json").write_text(json.dumps(ours))
    options = quantized.options(LLAMA, "w4a16-gptq", trace=trace, target=str(target))
    with pytest.raises(UsageError, match="another tokenizer"):
        prepare(SOURCE, options)
    (target / "tokenizer.json").write_text(json.dumps(theirs))
    assert prepare(SOURCE, options).decided.calibration.gptq


def test_a_machine_with_too_little_memory_is_told_so(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gptq, "machine_memory", lambda _: 100_000_000)
    error = refused(tmp_path / "out", trace)
    assert "of memory, and there are 100.00 MB" in error.what


def test_inputs_that_are_not_finite_are_refused(trace: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(SOURCE, tmp_path / "source"))
    tensors = load_file(source / "model.safetensors")
    (fc,) = (name for name in tensors if name.endswith("fc.weight"))
    tensors[fc][3, 3] = torch.nan
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    error = refused(tmp_path / "out", trace, source=source)
    assert "feeds layers.0.self_attn.q_proj values that are not finite" in error.what
    assert "second moment" in error.why


def test_a_disk_that_is_full_keeps_what_was_done(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(GptqFiles, "save_weight", Mock(side_effect=full))
    with pytest.raises(WriteError, match="no room left") as error:
        write(tmp_path / "out", trace)
    assert "what was done so far is in .out.calibration" in error.value.why
    assert kept(tmp_path / "out") == [".out.calibration"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SEQUENTIAL.replace("int4", "fp8").replace("mse", "max/448"), "rounds INT4 and INT8 weights, not FP8"),
        (SEQUENTIAL.replace("rounding: gptq\n", ""), "sequential: true beside rounding: nearest"),
        (SEQUENTIAL.replace("gptq", "best"), "rounding"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        find_recipe(str(tmp_path / "mine.yaml"))
    assert says in str(error.value)


def test_a_package_that_rounds_does_not_do_it_by_gptq(trace: Path) -> None:
    options = quantized.options(LLAMA, "w4a16-gptq", trace=trace, backend="quark")
    with pytest.raises(UsageError, match="--backend quark with recipe w4a16-gptq"):
        prepare(SOURCE, options)


def test_a_half_of_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--calibrate-on half has no meaning without --calibrate"):
        quantize(quantized.source("llama-eagle3"), tmp_path / "out", recipe="w4a16", calibrate_on="half")
    assert list(tmp_path.iterdir()) == []
