"""Quantizing the trained fixtures: what is written, for whom, what of it is the source's, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import convert
from draftconv.api.inspect import inspect
from draftconv.api.parity import parity
from draftconv.api.quantize import Quantization, prepare, quantize
from draftconv.api.verify import verify
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.hardware import CHIPS
from draftconv.errors import DraftconvError, Refused, Undecided, UsageError
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.rounding import quantize as rounded
from draftconv.quantization.weight_detection import find_quantized
from draftconv.reference.accept_length import Counts
from draftconv.reference.load import to_torch
from draftconv.replay import calibration
from draftconv.replay.calibration import input_peaks
from draftconv.replay.replay import Arm
from draftconv.report import Report
from draftconv.traces.request import TraceRequest
from tests import quantized
from tests.keywords import keywords
from tests.quantized import Written, names_what_is_kept
from tests.traces.recorded import Recorded

LLAMA, REDUCED, LLAMA31, MLA, MLA31 = (
    "llama-eagle3", "llama-eagle3-reduced", "llama-eagle3.1", "mla-eagle3", "mla-eagle3.1",
)  # fmt: skip
ENGINE_SPECS = [f"{engine}:{hardware}" for engine in ENGINES for hardware in ENGINES[engine].hardware]
DOWN = "layers.0.mlp.down_proj"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def repacked(source: Path, out: Path, name: str, form: str, **others: object) -> Path:
    target = str(quantized.DATA / "targets" / quantized.family(name))
    convert(source, out, target=target, pack=form, **others)  # type: ignore[arg-type]
    return out


# ── every recipe, drafter and engine ───────────────────────────────────────────────


@pytest.mark.parametrize("recipe", quantized.DISTINCT)
@pytest.mark.parametrize(
    "name",
    [
        REDUCED,
        MLA31,
        pytest.param(LLAMA, marks=pytest.mark.slow),
        pytest.param(LLAMA31, marks=pytest.mark.slow),
        pytest.param(MLA, marks=pytest.mark.slow),
    ],
)
def test_every_cell_is_written_and_read_rightly_or_refused(
    name: str, recipe: str, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: dict[tuple[str, ...], dict[str, torch.Tensor]] = {}

    def once(arm: Arm, requests: Iterable[TraceRequest], boundaries: Sequence[int], modules: Sequence[str]) -> object:
        key = tuple(modules)
        if key not in measured:
            measured[key] = input_peaks(arm, requests, boundaries, modules)
        return measured[key]

    monkeypatch.setattr(calibration, "input_peaks", once)
    trace = quantized.calibration(recorded, quantized.family(name), recipe)
    target = str(quantized.DATA / "targets" / quantized.family(name))
    outputs: dict[object, Path] = {}
    for spec in ENGINE_SPECS:
        try:
            found = prepare(quantized.source(name), quantized.options(name, recipe, spec, trace=trace))
        except Refused as refusal:
            assert refusal.why, spec
            assert "--recipe " in refusal.cure, spec
            continue
        form = (
            parse_engine(spec).name,
            found.decided.deployment.format,
            found.decided.deployment.style,
            found.decided.deployment.scheme,
        )
        if form not in outputs:
            outputs[form] = tmp_path / f"out-{len(outputs)}"
            found.write(outputs[form])
            assert verify(outputs[form], quantized.source(name), target=target, calibrate=trace).passed
            assert found.decided.deviations.keys() == set(found.decided.selection.quantized)
            if spec.startswith("trtllm"):
                names_what_is_kept(outputs[form])
        seen = inspect(outputs[form], engines=[spec], target=target)
        assert [verdict.status for verdict in seen.verdicts] == ["loads"], spec
        assert not [problem for problem in seen.problems if problem.severity == "error"], spec
    assert outputs or recipe == "quark-w4a8"


OWN = """
about: INT4 in one format
weights: {{dtype: int4, granularity: {granularity}, scale_rule: mse, scale_dtype: weight}}
format: {form}
exclude: [embed, lm_head, fc, norms, kv_b, a_projections]
"""


@pytest.mark.parametrize("name", [REDUCED, MLA31])
@pytest.mark.parametrize(
    ("form", "granularity"),
    [("gptq", "channel"), ("gptq", "group, group: 128"), ("autoawq", "group, group: 128"),
     ("quark-int4", "group, group: 128"), ("modelopt-awq", "group, group: 64")],
)  # fmt: skip
def test_every_format_that_a_recipe_may_name_is_written_and_read_rightly_or_refused(
    form: str, granularity: str, name: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(OWN.format(form=form, granularity=granularity))
    target = str(quantized.DATA / "targets" / quantized.family(name))
    served = set()
    for spec in (*ENGINE_SPECS, ""):
        try:
            found = prepare(quantized.source(name), quantized.options(name, str(recipe), *filter(None, [spec])))
        except Refused as refusal:
            assert "has no form on" in str(refusal), spec
            continue
        assert found.decided.deployment.format == form
        out = tmp_path / (spec or "wide").replace(":", "-")
        found.write(out)
        assert verify(out, quantized.source(name), target=target).passed
        if spec:
            assert [verdict.status for verdict in inspect(out, engines=[spec], target=target).verdicts] == ["loads"], (
                spec
            )
            served.add(spec)
    wanted = {
        f"{name}:{hw}" for name, engine in ENGINES.items() for k in engine.kernels if k.format == form
        for hw, chip in CHIPS.items() if chip in k.chips
    }  # fmt: skip
    assert served == wanted


@pytest.mark.parametrize("recipe", quantized.DISTINCT)
@pytest.mark.parametrize("name", [LLAMA31, MLA])
def test_every_recipe_is_written_for_nobody_in_particular(
    name: str, recipe: str, recorded: Recorded, tmp_path: Path
) -> None:
    """With one record, every tensor that is kept has the bits of its source, and every other one is its codes."""
    out = tmp_path / "out"
    done = quantized.write(out, name, recipe, trace=quantized.calibration(recorded, quantized.family(name), recipe))
    assert not done.decided.deployments
    source, found = quantized.read(quantized.source(name), name), quantized.read(out, name)
    stored = find_quantized(found)
    assert {match.format.id for match in stored.parts} == {p.format for p in done.decided.deployment.parts.values()}
    assert {f"{module}{WEIGHT}" for module in stored.modules} == set(done.decided.selection.quantized)
    for tensor, ref in source.tensors.items():
        if tensor not in done.decided.selection.quantized:
            assert (found.tensors[tensor].dtype, found.tensors[tensor].read()) == (ref.dtype, ref.read()), tensor
    for module in stored.modules:
        scheme = done.decided.part(f"{module}{WEIGHT}").scheme.weights
        if not scheme.whole:
            wanted = rounded(to_torch(source.tensors[f"{module}{WEIGHT}"]), scheme)
            held = stored.load(module).quantized
            same = torch.equal(held.qvalues.view(torch.uint8), wanted.qvalues.view(torch.uint8))
            assert same or recipe in quantized.BY_GPTQ, module
            assert torch.equal(held.scale.float(), wanted.scale.float()), module
    assert set(done.decided.deviations) == set(done.decided.selection.quantized)
    assert 0 < max(deviation.relative for deviation in done.decided.deviations.values()) < 0.2


@pytest.mark.parametrize("recipe", ["quark-w4a8", "w4a8", "fp8", "w4a16-awq"])
def test_the_same_input_gives_the_same_bytes(recipe: str, written: Written, tmp_path: Path) -> None:
    again = tmp_path / "again"
    quantized.write(again, REDUCED, recipe)
    assert files(again) == files(written(REDUCED, recipe))


def test_threads_change_no_byte(written: Written, tmp_path: Path) -> None:
    torch.set_num_threads(3)
    quantized.write(tmp_path / "out", REDUCED, "w4a8")
    assert files(tmp_path / "out") == files(written(REDUCED, "w4a8"))


def test_a_dry_look_reads_no_trace_and_writes_nothing(tmp_path: Path) -> None:
    found = prepare(quantized.source(REDUCED), quantized.options(REDUCED, "w4a16", "vllm:b200"))
    assert isinstance(found, Quantization)
    assert found.conversion.plan.total_bytes < 3_000_000
    assert found.decided.deployments["vllm@0.33.0:b200"].executed.startswith("4-bit storage")
    assert list(tmp_path.iterdir()) == []


# ── what is refused ────────────────────────────────────────────────────────────────


def refused(name: str, recipe: str, *engines: str, **others: object) -> DraftconvError:
    with pytest.raises(DraftconvError) as caught:
        prepare(quantized.source(name), quantized.options(name, recipe, *engines, **others))  # type: ignore[arg-type]
    return caught.value


def test_the_nearest_recipe_is_named() -> None:
    for engine, recipe, nearest in (
        ("trtllm:b200", "w4a8", "w4a8-awq"),
        ("sglang:mi325x", "w4a8", "fp8"),
        ("vllm:mi325x", "nvfp4", "w4a16-g128"),
    ):
        error = refused(LLAMA, recipe, engine)
        assert isinstance(error, Refused)
        assert f"--recipe {nearest} is the nearest" in error.cure


def test_16_bit_activations_have_to_be_allowed() -> None:
    assert "--allow-a16" in refused(LLAMA, "w4a8", "sglang:b200").cure
    found = prepare(quantized.source(LLAMA), quantized.options(LLAMA, "w4a8", "sglang:b200", allow_a16=True))
    assert found.decided.deployment.scheme.inputs is None
    assert "activations stay in 16 bits" in " ".join(found.decided.deployment.notes)


@pytest.mark.parametrize("engine", ["vllm:b200", "sglang:h200"])
def test_quark_per_channel_is_refused_with_the_way_out(engine: str) -> None:
    cure = refused(LLAMA, "quark-w4a8", engine).cure
    assert f"draftconv convert OUT OUT2 --to {engine.partition(chr(58))[0]} --pack compressed-pack" in cure


@pytest.mark.parametrize("recipe", sorted(quantized.CALIBRATED))
def test_scales_are_never_invented(recipe: str) -> None:
    error = refused(LLAMA, recipe)
    assert isinstance(error, UsageError)
    assert "--calibrate TRACE" in error.cure


def test_engines_that_need_different_files() -> None:
    error = refused(LLAMA, "w4a8", "vllm:cpu", "vllm:b200")
    assert isinstance(error, UsageError)
    assert "compressed-int" in error.why
    assert "compressed-pack" in error.why


def test_engines_that_share_a_file_get_one(tmp_path: Path) -> None:
    quantized.write(tmp_path / "out", LLAMA, "fp8", "vllm:b200", "sglang:mi325x")
    target = str(quantized.DATA / "targets" / "llama")
    seen = inspect(tmp_path / "out", engines=["vllm:b200", "sglang:mi325x"], target=target)
    assert [verdict.status for verdict in seen.verdicts] == ["loads", "loads"]


def test_an_engine_whose_hardware_decides() -> None:
    error = refused(LLAMA, "nvfp4", "vllm")
    assert isinstance(error, Undecided)
    assert "vllm:b200" in error.cure


def test_unknown_names_are_met_with_known_ones() -> None:
    assert "w4a8" in refused(LLAMA, "w4a9").cure
    assert "vllm" in str(refused(LLAMA, "w4a8", "vlm:b200").cure) + refused(LLAMA, "w4a8", "vlm:b200").why


def test_a_quantized_source_is_refused(written: Written) -> None:
    with pytest.raises(Refused, match="quantized already") as caught:
        prepare(written(REDUCED, "w4a16"), quantized.options(REDUCED, "fp8"))
    assert "convert --pack" in caught.value.cure


@pytest.mark.parametrize(
    ("engine", "recipe", "tp", "says"),
    [
        ("vllm:b200", "w4a16", 3, "4 attention heads cannot be shared by 3 ranks"),
        ("sglang:b200", "w4a16", 4, "per rank of 4 are no multiple of"),
        ("vllm:b200", "w4a16-g128", 2, "192 inputs per rank of 2 are no multiple of 128: a group of scales"),
    ],
)
def test_sizes_without_a_kernel_are_refused_per_rank(engine: str, recipe: str, tp: int, says: str) -> None:
    assert prepare(quantized.source(LLAMA), quantized.options(LLAMA, recipe, engine))
    error = refused(LLAMA, recipe, engine, tensor_parallel_size=tp)
    assert isinstance(error, Refused)
    assert "has no kernel for some sizes" in str(error)
    assert says in error.why


def test_sizes_with_another_kernel_are_told() -> None:
    found = prepare(quantized.source(LLAMA), quantized.options(LLAMA, "w4a16", "vllm:h200", tensor_parallel_size=4))
    assert any("Marlin is used instead" in fault for fault in found.decided.faults)
    assert prepare(quantized.source(LLAMA), quantized.options(LLAMA, "w4a16", "vllm:b200")).decided.faults == ()


# ── parity ─────────────────────────────────────────────────────────────────────────


def drafted(report: Report) -> list[list[Counts]]:
    """The counts of every request, of each candidate."""
    return [
        [record.counts for record in report.records if record.arm == found.candidate] for found in report.comparisons
    ]


@pytest.mark.parametrize(("name", "recipe"), [(REDUCED, "w4a8"), (MLA31, "quark-w4a8")])
def test_the_file_drafts_as_its_recipe_was_simulated(
    name: str, recipe: str, recorded: Recorded, written: Written
) -> None:
    trace = recorded(quantized.family(name), count=4)
    options: dict[str, Any] = {"fake_quant": (recipe,)}
    report = parity(quantized.source(name), [written(name, recipe)], **keywords(options, trace=trace))
    file, simulated = drafted(report)
    reference = [record.counts for record in report.records if record.arm == name]
    assert file == simulated
    assert file != reference


def test_a_damaged_file_does_not(recorded: Recorded, written: Written, tmp_path: Path) -> None:
    out = Path(shutil.copytree(written(REDUCED, "w4a8"), tmp_path / "damaged"))
    tensors = load_file(out / "model.safetensors")
    (scale,) = (name for name in tensors if name.endswith("mlp.down_proj.weight_scale"))
    tensors[scale] = tensors[scale] * 2
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    options: dict[str, Any] = {"fake_quant": ("w4a8",)}
    report = parity(quantized.source(REDUCED), [out], **keywords(options, trace=recorded("llama", count=4)))
    file, simulated = drafted(report)
    assert file != simulated


# ── what is told ───────────────────────────────────────────────────────────────────


def test_the_record_and_the_card_say_what_was_done(written: Written) -> None:
    out = written(REDUCED, "w4a8")
    record = json.loads((out / "draftconv.json").read_text())
    told = [change for change in record["changes"] if change["what"] == f"{DOWN}{WEIGHT}"]
    assert told == [
        {
            "kind": "replaced",
            "what": f"{DOWN}{WEIGHT}",
            "why": "quantized by recipe w4a8: weights INT4 per channel, mse; activations INT8 per token, dynamic",
        }
    ]
    assert record["facts"]["quantization"]
    assert (out / "README.md").exists()


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "recipes" / "w4a16.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("exclude: [", 'exclude: ["*.o_proj", '))
    done = quantize(
        quantized.source(LLAMA), tmp_path / "out", **keywords(quantized.options(LLAMA, str(mine), "vllm:b200"))
    )
    assert done.decided.recipe.name == "mine"
    assert done.decided.selection.kept["layers.0.self_attn.o_proj.weight"] == "*.o_proj"
    stored = find_quantized(quantized.read(tmp_path / "out", LLAMA))
    assert "layers.0.self_attn.o_proj" not in stored.modules
    assert any("o_proj" in entry for entry in stored.only.declared.ignore)
