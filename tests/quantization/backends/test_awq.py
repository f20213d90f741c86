"""AWQ smoothing by nvidia-modelopt, from a trace to a file that is verified, inspected and replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftconv.api.inspect import inspect
from draftconv.api.parity import parity
from draftconv.api.quantize import Quantization, quantize
from draftconv.api.verify import verify
from draftconv.errors import UsageError
from draftconv.quantization.backends import modelopt
from draftconv.quantization.computations import Quantize, Smoothing, floats
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Declared
from draftconv.quantization.quantized_weights import QuantizedWeights
from draftconv.quantization.scheme import InputScheme, Scheme, WeightScheme
from draftconv.quantization.weight_detection import find_quantized
from draftconv.reference.load import to_torch
from draftconv.replay.calibration import Inputs, sampled_inputs
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.traces.trace import open_trace
from tests import quantized
from tests.keywords import keywords
from tests.quantization.backends.real import hard, identical, needs, same
from tests.quantization.refs import loaded, ref_of
from tests.traces.recorded import Recorded, recorded

__all__ = ["recorded"]

pytestmark = needs("modelopt")

REDUCED = "llama-eagle3-reduced"
GROUP = WeightScheme("int4", "group", "max/7", "F32", 32)
FP8_STATIC = InputScheme("fp8", "tensor", dynamic=False)
CHANNELS = (3, 17, 40)
FACTOR = 64.0
"""A power of two: what is scaled by it has the same mantissa, and the drafter computes the same."""

JOINED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def lopsided(tmp_path: Path) -> Path:
    """A fixture that computes as before, with a few channels 64 times larger before each weight and smaller in it."""
    out = tmp_path / "lopsided"
    out.mkdir()
    source = quantized.source(REDUCED)
    (out / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")

    def named(end: str) -> Tensor:
        (name,) = (name for name in tensors if name.endswith(end))
        return tensors[name]

    for channel in CHANNELS:
        named("post_attention_layernorm.weight")[channel] *= FACTOR
        named("input_layernorm.weight")[channel] *= FACTOR
        for name in JOINED:  # q, k and v read the embedding first
            named(f"{name}.weight")[:, channel] /= FACTOR
        named("up_proj.weight")[channel] *= FACTOR
        named("down_proj.weight")[:, channel] /= FACTOR
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


def write(source: Path, out: Path, recipe: str, trace: Path | None, backend: str = "modelopt") -> Quantization:
    options = quantized.options(REDUCED, recipe, "trtllm:h200", trace=trace, backend=backend)
    return quantize(source, out, **keywords(options))


def stored(path: Path) -> QuantizedWeights:
    return find_quantized(quantized.read(path, REDUCED))


def everything(source: Path, path: Path, modules: list[str]) -> dict[str, Inputs]:
    """All inputs of a drafter on a trace."""
    trace = open_trace(path)
    arm = load_arm("arm", quantized.read(source, REDUCED), LoadSettings(trace.table))
    requests = [trace.read(entry, arm.boundaries) for entry in trace.entries]
    return sampled_inputs(arm, requests, arm.boundaries, modules, rows=1 << 20)


def output_errors(source: Path, out: Path, trace: Path) -> dict[str, float]:
    """|x (ŵ - w)| / |x w| of every weight over all inputs of the trace."""
    found = stored(out)
    drafter = quantized.read(source, REDUCED)
    inputs = everything(source, trace, list(found.modules))
    errors = {}
    for module in found.modules:
        weight = to_torch(drafter.tensors[f"{module}.weight"]).float()
        x = inputs[module].rows_NI
        errors[module] = float((x @ (floats(found.load(module)) - weight).T).norm() / (x @ weight.T).norm())
    return errors


@pytest.mark.parametrize("recipe", ["w4a8-awq", "w4a16-awq"])
def test_smoothed_weights_err_less_on_real_inputs(
    recipe: str, lopsided: Path, recorded: Recorded, tmp_path: Path
) -> None:
    trace = recorded("llama", count=4, length=16)
    done = write(lopsided, tmp_path / "smoothed", recipe, trace)
    needed = trace if recipe == "w4a8-awq" else None  # only its activations have static scales
    write(lopsided, tmp_path / "plain", recipe, needed, backend="native")
    smoothed, plain = (output_errors(lopsided, tmp_path / name, trace) for name in ("smoothed", "plain"))
    joined = {module for module in smoothed if module.endswith(JOINED)}
    larger = [module for module in smoothed if recipe == "w4a8-awq" or module not in joined]
    for module in larger:  # the inputs of o_proj are as they were
        assert smoothed[module] < 0.9 * plain[module] or module.endswith("o_proj"), module
    told = " ".join(done.decided.rounding.notes)
    assert "max/7 in place of mse" in told
    assert ("not smoothed: " in told) == (recipe == "w4a16-awq")
    factors = {module: stored(tmp_path / "smoothed").load(module).pre_quant_scale for module in smoothed}
    assert {module for module, factor in factors.items() if factor is None} == (
        joined if recipe == "w4a16-awq" else set()
    )


@pytest.mark.parametrize("recipe", ["w4a8-awq", "w4a16-awq"])
def test_it_is_verified_inspected_and_replayed(recipe: str, lopsided: Path, recorded: Recorded, tmp_path: Path) -> None:
    out, trace = tmp_path / "out", recorded("llama", count=4, length=16)
    write(lopsided, out, recipe, trace)
    target = str(quantized.DATA / "targets" / "llama")
    assert verify(out, lopsided, target=target, calibrate=trace).passed
    assert verify(out, lopsided, target=target).result == "claimed"
    assert [verdict.status for verdict in inspect(out, engines=["trtllm:h200"], target=target).verdicts] == ["loads"]
    report = parity(lopsided, [out], trace=trace)
    (comparison,) = report.comparisons
    estimate = comparison.verdict.estimate
    assert estimate is not None
    assert estimate.ratio > 0.8
    tensors = load_file(out / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("down_proj.pre_quant_scale"))
    tensors[name] = tensors[name] * 2
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    assert verify(out, lopsided, target=target, calibrate=trace).result == "fail"


def test_joined_weights_share_what_engines_join(lopsided: Path, recorded: Recorded, tmp_path: Path) -> None:
    write(lopsided, tmp_path / "out", "w4a8-awq", recorded("llama", count=2, length=8))
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        for suffix in ("pre_quant_scale", "input_scale", "weight_scale_2"):
            found = [tensor for name, tensor in tensors.items() if name.endswith(tuple(f"{n}.{suffix}" for n in names))]
            assert len(found) == len(names)
            assert all(same(found[0], other) for other in found[1:])
    record = json.loads((tmp_path / "out" / "draftconv.json").read_text())
    (why,) = (change["why"] for change in record["changes"] if change["what"].endswith("q_proj.weight"))
    assert "rounded by nvidia-modelopt 0.47" in why
    assert why.endswith("inputs smoothed by AWQ")


def test_the_scale_covers_every_input_and_not_only_the_sample(
    lopsided: Path, recorded: Recorded, tmp_path: Path
) -> None:
    trace = recorded("llama", count=4, length=16)
    write(lopsided, tmp_path / "out", "w4a8-awq", trace)
    found = stored(tmp_path / "out")
    for module, inputs in everything(lopsided, trace, list(found.modules)).items():
        weight = found.load(module)
        assert weight.pre_quant_scale is not None and weight.input_scale is not None
        largest = (inputs.rows_NI * weight.pre_quant_scale.float()).abs().amax()
        assert same(weight.input_scale, largest / 448)


@pytest.mark.parametrize("inputs", [None, FP8_STATIC], ids=str)
def test_in_float32_every_bit_is_modelopt_s(inputs: InputScheme | None) -> None:
    ordinary = hard(torch.float32, GROUP)[32:]
    weights = {"q_proj": ordinary[:16], "k_proj": ordinary[16:24], "v_proj": 3 * ordinary[24:]}
    rows = torch.randn(72, 96, generator=torch.Generator().manual_seed(11)) * torch.logspace(-1, 1, 96)
    scheme = Scheme(GROUP, inputs)
    refs = {name: ref_of(name, weight) for name, weight in weights.items()}
    smoothing = Smoothing(refs, scheme, rows, rows.abs().amax(0), modelopt.smoothing)
    form = formats()["modelopt-awq"]
    for name, wanted in modelopt.calibrate(weights, scheme, [rows]).items():
        done = Quantize(
            name, refs[name], scheme, form, None, tuple(refs.values()), rounds=modelopt.quantize, smoothing=smoothing
        )
        tensors = loaded(done.run(), form.parts((len(weights[name]), 96), scheme, "F32"))
        found = form.load(tensors, Declared("int4", "group", 32, inputs), "F32")
        assert identical(found.quantized, wanted.quantized)
        for mine, theirs in (
            (found.pre_quant_scale, wanted.pre_quant_scale),
            (found.input_scale, wanted.input_scale),
            (found.fp8_scale, wanted.fp8_scale),
        ):
            assert (mine is None) == (theirs is None)
            assert mine is None or theirs is None or same(mine.float(), theirs.float())


def test_without_inputs_there_is_no_smoothing() -> None:
    with pytest.raises(UsageError, match="nothing to calibrate on"):
        modelopt.smoothing({"q_proj": hard(torch.float32, GROUP)}, Scheme(GROUP), [])
