"""Quantizing the trained fixtures: what is written, for whom, what of it is the source's, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.convert import prepare as planned_conversion
from draftconv.api.inspect import inspect
from draftconv.api.parity import ParityOptions, parity
from draftconv.api.quantize import Quantization, prepare, quantize
from draftconv.api.verify import verify
from draftconv.checkpoint import open_checkpoint
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.kernels import CHIPS, KERNELS, hardware_of
from draftconv.errors import BadCheckpoint, DraftconvError, Refused, Undecided, UsageError
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.grids import dequantize
from draftconv.quantization.grids import quantize as rounded
from draftconv.quantization.reading import Stored, find_stored
from draftconv.quantization.recipes import find_recipe, recipe_names
from draftconv.quantization.simulate import simulate, stored_dtypes
from draftconv.reference.counts import Counts
from draftconv.reference.load import load_drafter, to_torch
from draftconv.replay import calibration
from draftconv.replay.arms import Loading, load_arm
from draftconv.replay.calibration import input_peaks
from draftconv.replay.replay import Arm
from draftconv.report import Report
from draftconv.traces.request import Request
from draftconv.traces.trace import open_trace
from tests import quantized
from tests.traces.recorded import Recorded

LLAMA, REDUCED, LLAMA31, MLA, MLA31 = (
    "llama-eagle3", "llama-eagle3-reduced", "llama-eagle3.1", "mla-eagle3", "mla-eagle3.1",
)  # fmt: skip
ENGINE_SPECS = [f"{engine}:{hardware}" for engine in ENGINES for hardware in hardware_of(engine)]
DOWN = "layers.0.mlp.down_proj"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`written(name, recipe, *engines)`: a quantized fixture, written once and never changed."""
    root = tmp_path_factory.mktemp("quantized")

    def write(name: str, recipe: str, *engines: str) -> Path:
        out = root / "-".join((name, recipe, *engines)).replace(":", "-")
        if not out.exists():
            quantized.write(out, name, recipe, *engines)
        return out

    return write


Written = Callable[..., Path]


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def repacked(source: Path, out: Path, name: str, form: str, **others: object) -> Path:
    target = str(quantized.DATA / "targets" / quantized.family(name))
    convert(source, out, ConvertOptions(target=target, pack=form, **others))  # type: ignore[arg-type]
    return out


# ── every recipe, drafter and engine ───────────────────────────────────────────────


@pytest.mark.parametrize("recipe", recipe_names())
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

    def once(arm: Arm, requests: Iterable[Request], boundaries: Sequence[int], modules: Sequence[str]) -> object:
        key = tuple(modules)
        if key not in measured:
            measured[key] = input_peaks(arm, requests, boundaries, modules)
        return measured[key]

    monkeypatch.setattr(calibration, "input_peaks", once)
    trace = recorded(quantized.family(name), count=2, length=8)
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
            assert verify(outputs[form], quantized.source(name), target=target).passed
            assert found.decided.deviations.keys() == set(found.decided.selection.quantized)
            if spec.startswith("trtllm"):
                names_every_module(outputs[form], len(found.decided.selection.quantized))
        seen = inspect(outputs[form], [spec], target=target)
        assert [verdict.status for verdict in seen.verdicts] == ["loads"], spec
        assert not [problem for problem in seen.problems if problem.severity == "error"], spec
    assert outputs or recipe == "quark-w4a8"


def names_every_module(out: Path, quantized: int) -> None:
    """TensorRT-LLM takes what is listed for quantized, in both of the files that its releases read, and never fc."""
    legacy = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    entry = json.loads((out / "config.json").read_text())["quantization_config"]
    for section, exclusions in ((legacy, "exclude_modules"), (entry, "ignore")):
        assert section["quant_algo"] == "MIXED_PRECISION"
        assert len(section["quantized_layers"]) == quantized
        assert all(module.startswith("model.midlayer.") for module in section["quantized_layers"])
        assert {"model.fc", "lm_head"} <= set(section[exclusions])


OWN = """
about: INT4 in one format
weights: {{grid: int4, per: {per}, scale_rule: mse, scale_dtype: weight}}
format: {form}
exclude: [embed, lm_head, fc, norms, kv_b, a_projections]
"""


@pytest.mark.parametrize("name", [REDUCED, MLA31])
@pytest.mark.parametrize(
    ("form", "per"),
    [("gptq", "channel"), ("gptq", "group, group: 128"), ("autoawq", "group, group: 128"),
     ("quark-int4", "group, group: 128"), ("modelopt-awq", "group, group: 64")],
)  # fmt: skip
def test_every_format_that_a_recipe_may_name_is_written_and_read_rightly_or_refused(
    form: str, per: str, name: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(OWN.format(form=form, per=per))
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
            assert [verdict.status for verdict in inspect(out, [spec], target=target).verdicts] == ["loads"], spec
            served.add(spec)
    wanted = {f"{k.engine}:{hw}" for k in KERNELS if k.format == form for hw, chip in CHIPS.items() if chip in k.chips}
    assert served == wanted


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("name", [LLAMA31, MLA])
def test_every_recipe_is_written_for_nobody_in_particular(
    name: str, recipe: str, recorded: Recorded, tmp_path: Path
) -> None:
    """With one record, every tensor that is kept has the bits of its source, and every other one is its codes."""
    out = tmp_path / "out"
    done = quantized.write(out, name, recipe, trace=recorded(quantized.family(name), count=2, length=8))
    assert not done.decided.deployments
    source, found = quantized.read(quantized.source(name), name), quantized.read(out, name)
    stored = find_stored(found)
    assert stored.format.id == done.decided.deployment.format
    assert {f"{module}{WEIGHT}" for module in stored.modules} == set(done.decided.selection.quantized)
    for tensor, ref in source.tensors.items():
        if tensor not in done.decided.selection.quantized:
            assert (found.tensors[tensor].dtype, found.tensors[tensor].read()) == (ref.dtype, ref.read()), tensor
    scheme = find_recipe(recipe).scheme.weights
    if not scheme.whole:
        for module in stored.modules:
            wanted = rounded(to_torch(source.tensors[f"{module}{WEIGHT}"]), scheme)
            held = stored.load(module).quantized
            assert torch.equal(held.codes.view(torch.uint8), wanted.codes.view(torch.uint8)), module
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


@pytest.mark.parametrize("recipe", sorted(quantized.STATIC))
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
    seen = inspect(tmp_path / "out", ["vllm:b200", "sglang:mi325x"], target=target)
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
    error = refused(LLAMA, recipe, engine, tp=tp)
    assert isinstance(error, Refused)
    assert "has no kernel for some sizes" in str(error)
    assert says in error.why


def test_sizes_with_another_kernel_are_told() -> None:
    found = prepare(quantized.source(LLAMA), quantized.options(LLAMA, "w4a16", "vllm:h200", tp=4))
    assert any("Marlin is used instead" in fault for fault in found.decided.faults)
    assert prepare(quantized.source(LLAMA), quantized.options(LLAMA, "w4a16", "vllm:b200")).decided.faults == ()


# ── static scales ──────────────────────────────────────────────────────────────────


def test_scales_are_the_largest_inputs_of_a_replay(recorded: Recorded, tmp_path: Path) -> None:
    path = recorded("llama", count=2, length=8)
    quantized.write(tmp_path / "out", LLAMA, "fp8-tensor", trace=path)
    stored = find_stored(quantized.read(tmp_path / "out", LLAMA))
    trace = open_trace(path)
    arm = load_arm("arm", quantized.read(quantized.source(LLAMA), LLAMA), Loading(trace.table))
    requests = [trace.read(entry, arm.boundaries) for entry in trace.entries]
    peaks = input_peaks(arm, requests, arm.boundaries, list(stored.modules))
    for module, peak in peaks.items():
        scale = stored.load(module).input_scale
        assert scale is not None
        assert float(scale) == float(peak / 448)
    # q, k and v have the same input, and so the same peak
    assert len({float(peak) for module, peak in peaks.items() if module.endswith(("q_proj", "k_proj", "v_proj"))}) == 1


def test_inputs_that_are_all_zeros_are_refused(recorded: Recorded) -> None:
    trace = open_trace(recorded("llama", count=1, length=8))
    arm = load_arm("arm", quantized.read(quantized.source(LLAMA), LLAMA), Loading(trace.table))
    silent = arm.model.changed(tensors={"layers.0.post_attention_layernorm.weight": torch.zeros(256)})
    requests = [trace.read(entry, arm.boundaries) for entry in trace.entries]
    with pytest.raises(Refused, match=r"inputs of layers\.0\.mlp\.up_proj peak at 0 on this trace"):
        input_peaks(replace(arm, model=silent), requests, arm.boundaries, ["layers.0.mlp.up_proj"])


# ── the same integers elsewhere ────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [REDUCED, MLA31])
def test_quark_to_compressed_tensors_and_back_is_every_byte(name: str, written: Written, tmp_path: Path) -> None:
    source = written(name, "quark-w4a8")
    there = repacked(source, tmp_path / "there", name, "compressed-pack")
    assert weights(there) != weights(source)
    back = repacked(there, tmp_path / "back", name, "quark-int4:reorder")
    mine, theirs = open_checkpoint(back), open_checkpoint(source)
    assert {n: r.read() for n, r in mine.tensors.items()} == {n: r.read() for n, r in theirs.tensors.items()}
    assert mine.config["quantization_config"] == theirs.config["quantization_config"]


def floats_of(path: Path, name: str) -> dict[str, torch.Tensor]:
    stored = find_stored(quantized.read(path, name))
    return {module: dequantize(stored.load(module).quantized) for module in stored.modules}


@pytest.mark.parametrize("form", ["compressed-pack", "compressed-int", "gptq", "autoawq", "quark-int4:order",
                                  "modelopt-awq"])  # fmt: skip
def test_the_published_scheme_in_every_format_of_int4(form: str, written: Written, tmp_path: Path) -> None:
    """Formats of groups repeat a row's scale for each of its groups: the weights stay the same, to the bit."""
    source = written(REDUCED, "quark-w4a8")
    out = repacked(source, tmp_path / "out", REDUCED, form)
    before, after = floats_of(source, REDUCED), floats_of(out, REDUCED)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[module], after[module]) for module in before)
    group = find_stored(quantized.read(out, REDUCED)).declared.group
    assert group == (128 if form in ("autoawq", "modelopt-awq") else None)


@pytest.mark.parametrize("name", [REDUCED, MLA31])
@pytest.mark.parametrize("to", ["trtllm", "portable"])
def test_a_drafter_repacked_for_tensorrt_llm_names_every_module(
    name: str, to: str, written: Written, tmp_path: Path
) -> None:
    source = written(name, "quark-w4a8")
    out = repacked(source, tmp_path / "out", name, "modelopt-awq", to=to)
    names_every_module(out, len(find_stored(quantized.read(source, name)).modules))
    plain = repacked(source, tmp_path / "plain", name, "modelopt-awq:plain", to=to)
    assert json.loads((plain / "hf_quant_config.json").read_text())["quantization"]["quant_algo"] == "W4A16_AWQ"


def test_a_repacked_drafter_is_served(written: Written, tmp_path: Path) -> None:
    target = str(quantized.DATA / "targets" / "llama")
    source = written(REDUCED, "quark-w4a8")
    before = inspect(source, ["vllm:b200"], target=target)
    assert [verdict.status for verdict in before.verdicts] != ["loads"]
    for engine in ("vllm", "sglang"):
        out = repacked(source, tmp_path / engine, REDUCED, "compressed-pack", to=engine)
        seen = inspect(out, [f"{engine}:b200"], target=target)
        assert [verdict.status for verdict in seen.verdicts] == ["loads"]


def test_activations_are_not_left_out_without_a_word(written: Written, tmp_path: Path) -> None:
    source = written(REDUCED, "w4a8")
    with pytest.raises(Refused, match="GPTQ cannot declare activations as INT8 per token") as caught:
        repacked(source, tmp_path / "out", REDUCED, "gptq")
    assert "--allow-lossy" in caught.value.cure
    out = repacked(source, tmp_path / "out", REDUCED, "gptq", allow_lossy=True)
    assert find_stored(quantized.read(out, REDUCED)).declared.inputs is None
    before, after = floats_of(source, REDUCED), floats_of(out, REDUCED)
    assert all(torch.equal(before[module], after[module]) for module in before)


@pytest.mark.parametrize("form", ["compressed-pack", "gptq", "quark-int4"])
def test_wide_scales_are_not_rounded_without_a_word(form: str, written: Written, tmp_path: Path) -> None:
    source, out = written(REDUCED, "w4a16-awq"), tmp_path / "out"
    with pytest.raises(Refused, match="has no room for F32 scales of BF16 weights") as caught:
        repacked(source, out, REDUCED, form)
    assert "by up to 0.39%" in caught.value.why
    assert "--allow-lossy" in caught.value.cure
    repacked(source, out, REDUCED, form, allow_lossy=True)
    before, after = floats_of(source, REDUCED), floats_of(out, REDUCED)
    for module, wanted in before.items():
        assert not torch.equal(after[module], wanted)
        assert ((after[module] - wanted).abs() <= 2**-8 * wanted.abs()).all()
    judged = verify(out, source)
    assert judged.passed
    told = {found.what: found.how for found in judged.tensors if found.outcome == "declared"}
    assert told.keys() == {f"{module}{WEIGHT}" for module in before}
    assert all("scales rounded once to BF16" in how for how in told.values())
    tensors = load_file(out / "model.safetensors")
    (scale,) = (name for name in tensors if name.endswith(("down_proj.weight_scale", "down_proj.scales")))
    tensors[scale][0, 0] *= 1 + 2**-7
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    assert not verify(out, source).passed


def test_calibrated_scales_are_left_out_with_their_activations(recorded: Recorded, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    quantized.write(source, REDUCED, "w4a8-awq", "trtllm:b200", trace=recorded("llama", count=2, length=8))
    with pytest.raises(Refused, match="cannot declare activations as FP8 E4M3 per tensor, static") as caught:
        repacked(source, out, REDUCED, "compressed-pack", to="vllm")
    assert "--allow-lossy" in caught.value.cure
    repacked(source, out, REDUCED, "compressed-pack", to="vllm", allow_lossy=True)
    assert not any("input_scale" in name for name in load_file(out / "model.safetensors"))
    judged = verify(out, source)
    assert judged.passed
    assert any(found.what == "activations" and found.outcome == "declared" for found in judged.tensors)
    target = str(quantized.DATA / "targets" / "llama")
    assert [verdict.status for verdict in inspect(out, ["vllm:b200"], target=target).verdicts] == ["loads"]


@pytest.mark.parametrize(
    ("recipe", "form", "says"),
    [
        ("w4a16-awq", "compressed-float", "cannot hold INT4 per group of 128"),
        ("fp8", "gptq", "cannot hold FP8 E4M3 per channel"),
    ],
)
def test_what_cannot_be_held_is_called_by_its_name(
    recipe: str, form: str, says: str, written: Written, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=says):
        repacked(written(REDUCED, recipe), tmp_path / "out", REDUCED, form, allow_lossy=True)


def test_a_plan_reads_no_codes_and_damaged_ones_leave_nothing_behind(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(written(REDUCED, "w4a8", "vllm:cpu"), tmp_path / "source"))
    tensors = load_file(source / "model.safetensors")
    (codes,) = (name for name in tensors if name.endswith("mlp.down_proj.weight"))
    tensors[codes][0, 0] = 100
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    target = str(quantized.DATA / "targets" / "llama")
    with monkeypatch.context() as patched:
        patched.setattr(Stored, "load", lambda *_: pytest.fail("a weight was read"))
        planned = planned_conversion(source, ConvertOptions(to="vllm", target=target, pack="compressed-pack"))
    with pytest.raises(BadCheckpoint, match="codes from -8 to 100 are no INT4"):
        planned.write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_scales_without_room_are_refused_before_a_weight_is_read(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(written(REDUCED, "w4a16-awq"), tmp_path / "source"))
    tensors = load_file(source / "model.safetensors")
    (scale,) = (name for name in tensors if name.endswith("mlp.down_proj.weight_scale"))
    tensors[scale][0, 0] = 1e-45
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(Stored, "load", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(Refused, match="down_proj has scales that BF16 does not hold"):
        planned_conversion(source, ConvertOptions(to="vllm", pack="compressed-pack", allow_lossy=True))


def test_a_format_without_room_is_refused(written: Written, tmp_path: Path) -> None:
    source = written(REDUCED, "fp8")
    with pytest.raises(Refused, match="cannot hold FP8 E4M3 per channel"):
        repacked(source, tmp_path / "out", REDUCED, "compressed-pack")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (ConvertOptions(pack="compressed-pak"), UsageError, "no format is called compressed-pak"),
        (ConvertOptions(pack="quark-int4:other"), UsageError, "is not written in style other"),
        (ConvertOptions(pack="compressed-pack", dequantize=True), UsageError, "contradict each other"),
        (ConvertOptions(), Refused, "this drafter is quantized"),
    ],
    ids=str,
)
def test_options_that_cannot_be_meant(
    options: ConvertOptions, error: type[DraftconvError], says: str, written: Written, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says) as caught:
        convert(written(REDUCED, "quark-w4a8"), tmp_path / "out", options)
    assert says != "no format is called compressed-pak" or "compressed-pack" in caught.value.cure
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [ConvertOptions(pack="gptq"), ConvertOptions(dequantize=True)], ids=str)
def test_a_plain_drafter_has_nothing_to_repack(options: ConvertOptions, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this one is not quantized"):
        convert(quantized.source(LLAMA), tmp_path / "out", options)


# ── back to floats ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "recipe"), [(REDUCED, "quark-w4a8"), (MLA31, "w4a16-g128"), (REDUCED, "fp8")])
def test_the_dequantized_twin_is_what_is_simulated(name: str, recipe: str, written: Written, tmp_path: Path) -> None:
    target = quantized.target(name)
    options = ConvertOptions(target=str(quantized.DATA / "targets" / quantized.family(name)), dequantize=True)
    convert(written(name, recipe), tmp_path / "out", options)
    source, twin = quantized.read(quantized.source(name), name), quantized.read(tmp_path / "out", name)
    assert twin.facts.computed == source.facts.computed
    model = load_drafter(source, target, dtype=torch.bfloat16)
    wanted = simulate(model, find_recipe(recipe), stored=stored_dtypes(source)).state_dict()
    for tensor, found in load_drafter(twin, target, dtype=torch.bfloat16).state_dict().items():
        assert torch.equal(found, wanted[tensor]), tensor


def test_a_wider_twin_rounds_nothing(written: Written, tmp_path: Path) -> None:
    source = written(REDUCED, "quark-w4a8")
    convert(source, tmp_path / "out", ConvertOptions(dequantize=True, dtype="f32"))
    twin = quantized.read(tmp_path / "out", REDUCED)
    for module, wanted in floats_of(source, REDUCED).items():
        assert twin.tensors[f"{module}{WEIGHT}"].dtype == "F32"
        assert torch.equal(to_torch(twin.tensors[f"{module}{WEIGHT}"]), wanted)


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
    options = ParityOptions(fake_quant=(recipe,))
    report = parity(quantized.source(name), [written(name, recipe)], trace=trace, options=options)
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
    options = ParityOptions(fake_quant=("w4a8",))
    report = parity(quantized.source(REDUCED), [out], trace=recorded("llama", count=4), options=options)
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
    done = quantize(quantized.source(LLAMA), tmp_path / "out", quantized.options(LLAMA, str(mine), "vllm:b200"))
    assert done.decided.recipe.name == "mine"
    assert done.decided.selection.kept["layers.0.self_attn.o_proj.weight"] == "*.o_proj"
    stored = find_stored(quantized.read(tmp_path / "out", LLAMA))
    assert "layers.0.self_attn.o_proj" not in stored.modules
    assert any("o_proj" in entry for entry in stored.declared.ignore)
