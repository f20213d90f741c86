"""Computations on one weight: block by block as all at once, and as the format foretold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization import computations as module
from draftconv.quantization import quantized_weights
from draftconv.quantization.computations import Dequantize, Quantize, Repack, SharedScales, Smoothing, floats
from draftconv.quantization.format_detection import FormatMatch
from draftconv.quantization.formats import find_format
from draftconv.quantization.formats.base import Declared, Weight
from draftconv.quantization.formats.modelopt_awq import fp8_scale
from draftconv.quantization.quantized_weights import CODES, QuantizedWeights, read
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.regroup import regroup
from draftconv.quantization.rounding import RoundedWeight, dequantize, peak, quantize
from draftconv.quantization.scheme import Scheme
from tests.quantization.refs import loaded, ref_of, refs_of

MODULE = "layers.0.mlp.gate_proj"
NAME = f"{MODULE}.weight"

FORMS = {
    "w4a16": "compressed-pack",
    "w4a16-g128": "compressed-pack",
    "quark-w4a8": "quark-int4:reorder",
    "fp8": "compressed-float",
    "fp8-tensor": "modelopt-fp8",
    "nvfp4": "modelopt-nvfp4",
    "mxfp4": "quark-mxfp4",
    "w4a16-awq": "modelopt-awq",
    "w4a8-awq": "modelopt-awq",
}
"""Shipped recipes and a format that holds them."""


def weight(rows: int = 40, seed: int = 0, largest: float = 0.0) -> Tensor:
    """BF16 [rows, 256]; `largest` puts that value into the last row."""
    made = torch.randn(rows, 256, generator=torch.Generator().manual_seed(seed)).bfloat16()
    if largest:
        made[-1, -1] = largest
    return made


def computation(recipe: str, tensor: Tensor, *others: Tensor) -> Quantize:
    scheme = find_recipe(recipe).scheme
    form, style = find_format(FORMS[recipe])
    ref = ref_of(NAME, tensor)
    fused = (ref, *(ref_of(f"other {i}", other) for i, other in enumerate(others)))
    static = scheme.inputs is not None and not scheme.inputs.dynamic
    return Quantize(NAME, ref, scheme, form, style, fused, {}, torch.tensor(0.5) if static else None)


class Counted:
    """The native backend, counting its calls."""

    calls = 0

    def __call__(self, *args: Any, **named: Any) -> RoundedWeight:
        self.calls += 1
        return quantize(*args, **named)


def read_back(done: Quantize) -> Weight:
    """Load what a computation yields, after holding it against what its format foretold."""
    outputs, inputs = done.ref.shape
    tensors = loaded(done.run(), done.format.parts((outputs, inputs), done.scheme, done.ref.dtype))
    weights = done.scheme.weights
    declared = Declared(weights.dtype, weights.granularity, weights.group, done.scheme.inputs, style=done.style)
    return done.format.load(tensors, declared, done.ref.dtype)


@pytest.mark.parametrize("recipe", FORMS)
def test_blocks_of_rows_are_the_whole(recipe: str) -> None:
    """A few rows at a time, with the largest value in the last block and a larger one in a fused weight."""
    tensor, other = weight(largest=9.0), weight(seed=1, largest=11.0)
    done = computation(recipe, tensor, other)
    at_once = done.run()
    assert replace(done, block=7 * 512).run() == at_once
    scheme = find_recipe(recipe).scheme.weights
    whole = torch.maximum(peak(tensor), peak(other)) if scheme.whole else None
    wanted, found = quantize(tensor, scheme, whole=whole), read_back(done).quantized
    assert torch.equal(found.qvalues.view(torch.uint8), wanted.qvalues.view(torch.uint8))
    assert torch.equal(found.scale, wanted.scale)
    assert torch.equal(found.unit, wanted.unit)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("recipe", FORMS)
def test_a_gpu_rounds_to_the_same_bytes(recipe: str) -> None:
    """For `mse` too, on these weights: it adds up errors in another order, which only near-ties could show."""
    done = computation(recipe, weight(largest=9.0), weight(seed=1, largest=11.0))
    assert replace(done, device="cuda").run() == done.run()


@pytest.mark.parametrize("recipe", ["fp8-tensor", "nvfp4"])
def test_fused_weights_share_their_scale_for_the_whole(recipe: str) -> None:
    small, large = weight(largest=9.0), weight(seed=1, largest=11.0)
    together = [read_back(computation(recipe, *pair)).quantized for pair in ((small, large), (large, small))]
    alone = read_back(computation(recipe, small)).quantized
    one, other, lonely = (q.unit if recipe == "nvfp4" else q.scale for q in (*together, alone))
    assert torch.equal(one, other)
    assert not torch.equal(one, lonely)


def test_int4_that_meets_fp8_shares_what_it_is_widened_by() -> None:
    small, large = weight(largest=9.0), weight(seed=1, largest=90.0)
    done = computation("w4a8-awq", small, large)
    scheme = done.scheme.weights
    wanted = fp8_scale(quantize(large, scheme))
    assert wanted > fp8_scale(quantize(small, scheme))
    found = read_back(done).fp8_scale
    assert found is not None
    assert torch.equal(found, wanted)
    assert read_back(computation("w4a16-awq", small, large)).fp8_scale is None


def test_fused_weights_are_rounded_once_more_for_all_of_them() -> None:
    """The first of them rounds the others too, to know the largest; after that each rounds itself."""
    tensors = [weight(seed=seed, largest=9.0 + seed) for seed in range(3)]
    first = replace(computation("w4a8-awq", *tensors), rounds=(counted := Counted()))
    each = [replace(first, ref=ref) for ref in first.fused]
    scales, calls = [], []
    for done in each:
        counted.calls = 0
        scales.append(read_back(done).fp8_scale)
        calls.append(counted.calls)
    assert calls == [3, 1, 1]
    assert len({float(scale) for scale in scales if scale is not None}) == 1


@pytest.mark.parametrize("recipe", ["fp8-tensor", "nvfp4"])
def test_the_peak_of_a_fused_weight_is_looked_for_once(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [weight(seed=seed, largest=9.0 + seed) for seed in range(3)]
    first = computation(recipe, *tensors)
    each = [replace(first, ref=ref) for ref in first.fused]
    alone = [replace(done, shared=SharedScales()).run() for done in each]
    searched = 0

    def counted(rows: Tensor) -> Tensor:
        nonlocal searched
        searched += 1
        return peak(rows)

    monkeypatch.setattr(module, "peak", counted)
    assert [done.run() for done in each] == alone
    assert searched == 3


def test_the_static_scale_is_stored_as_given() -> None:
    for recipe in ("fp8-tensor", "w4a8-awq", "nvfp4", "mxfp4"):
        stored = read_back(computation(recipe, weight())).input_scale
        assert stored is not None
        assert float(stored) == 0.5
    assert read_back(computation("w4a16", weight())).input_scale is None


def test_the_deviation_is_that_of_the_result() -> None:
    tensor = weight()
    tensor[17] = 0
    tensor[17, 0], tensor[17, 1:] = 100.0, 1.0  # one large value leaves the others no code but 0
    done = computation("quark-w4a8", tensor)
    done.run()
    result = dequantize(quantize(tensor, done.scheme.weights))
    error, told = result - tensor.float(), done.deviations[NAME]
    assert told.relative == pytest.approx(float(error.norm() / tensor.float().norm()), rel=1e-5)
    assert told.largest == float(error.abs().max())
    rows = error.norm(dim=1) / tensor.float().norm(dim=1)
    assert told.worst == pytest.approx(float(rows.max()), rel=1e-5)
    assert told.row == int(rows.argmax())


def test_a_weight_that_is_not_finite_is_named() -> None:
    tensor = weight()
    tensor[3, 3] = float("inf")
    with pytest.raises(BadCheckpoint, match=f"^{NAME} holds NaN or infinite"):
        computation("w4a16", tensor).run()


def test_what_is_read_is_all_of_a_fused_group_once() -> None:
    done = computation("fp8-tensor", weight(), weight(seed=1))
    assert [ref.name for ref in done.sources] == [NAME, "other 0"]
    assert done.memory >= 3 * 40 * 256


# ── smoothed ───────────────────────────────────────────────────────────────────────


ROWS, PEAKS = torch.ones(3, 256), torch.linspace(1, 4, 256)


def half_as_much(weights: Mapping[str, Tensor], scheme: Scheme, inputs: Sequence[Tensor]) -> Tensor:
    """Factors that BF16 rounds, and that tell what they were found from."""
    assert list(weights) == [NAME, "other 0"]
    assert scheme.weights.dtype == "int4"
    assert [x.shape for x in inputs] == [(3, 256)]
    return torch.linspace(0.1, 2.3, 256)


def smoothed(recipe: str) -> Quantize:
    done = computation(recipe, weight(), weight(seed=1, largest=90.0))
    refs = dict(zip((NAME, "other 0"), done.fused, strict=True))
    return replace(done, input_scale=None, smoothing=Smoothing(refs, done.scheme, ROWS, PEAKS, half_as_much))


def test_columns_are_divided_by_what_the_file_multiplies_inputs_with() -> None:
    done = smoothed("w4a8-awq")
    found, factor = (
        read_back(done),
        half_as_much(dict.fromkeys((NAME, "other 0"), ROWS), done.scheme, [ROWS]).bfloat16(),
    )
    assert found.pre_quant_scale is not None
    assert torch.equal(found.pre_quant_scale, factor)
    divided = [tensor.float() * (1 / factor.float()) for tensor in (weight(), weight(seed=1, largest=90.0))]
    wanted, other = (quantize(tensor, done.scheme.weights) for tensor in divided)
    assert torch.equal(found.quantized.qvalues, wanted.qvalues)
    assert torch.equal(found.quantized.scale, wanted.scale)
    assert found.fp8_scale is not None and found.input_scale is not None
    assert torch.equal(found.fp8_scale, torch.maximum(fp8_scale(wanted), fp8_scale(other)))
    assert torch.equal(found.input_scale, (PEAKS * factor.float()).amax() / 448)
    off = (floats(found) - weight().float()).norm() / weight().float().norm()
    assert done.deviations[NAME].relative == pytest.approx(float(off), rel=1e-5)


def test_smoothing_is_the_same_in_blocks_and_beside_16_bits() -> None:
    done = smoothed("w4a16-awq")
    assert replace(done, block=7 * 512).run() == done.run()
    assert read_back(done).input_scale is None
    assert replace(done, block=1).memory == 8 * 2 * weight().nbytes


# ── stored weights ─────────────────────────────────────────────────────────────────


def stored(
    scheme: Scheme, format: str, tensor: Tensor, input_scale: Tensor | None = None
) -> tuple[QuantizedWeights, Weight]:
    form, style = find_format(format)
    held = Weight(quantize(tensor, scheme.weights), "BF16", input_scale, granularity=scheme.weights.granularity)
    inputs = scheme.inputs if input_scale is not None else None
    declared = Declared(scheme.weights.dtype, scheme.weights.granularity, scheme.weights.group, inputs, style=style)
    parts = refs_of(MODULE, form.store(held, style))
    rows, columns = tensor.shape
    match = FormatMatch(form, declared)
    return QuantizedWeights({MODULE: match}, {MODULE: parts}, {MODULE: (rows, columns)}, "BF16"), held


CHANNEL, GROUPED = find_recipe("quark-w4a8").scheme, find_recipe("w4a16-g128").scheme


def repacked(found: QuantizedWeights, format: str, group: int | None) -> Repack:
    form, style = find_format(format)
    return Repack(MODULE, found.modules[MODULE], found, form, style, group)


def same(parts: Mapping[str, bytes | memoryview], found: QuantizedWeights) -> bool:
    refs = found.modules[MODULE]
    return {k: bytes(v) for k, v in parts.items()} == {suffix: ref.read() for suffix, ref in refs.items()}


def test_a_repack_to_its_own_format_is_every_byte() -> None:
    for scheme, format in ((CHANNEL, "quark-int4:reorder"), (GROUPED, "compressed-pack"), (GROUPED, "gptq")):
        found, _ = stored(scheme, format, weight())
        assert same(repacked(found, format, scheme.weights.group).run(), found)


def test_a_row_scale_repeated_per_group_is_the_same_weight() -> None:
    found, held = stored(CHANNEL, "quark-int4:reorder", weight())
    regrouped = repacked(found, "compressed-pack", 128).weight()
    assert regrouped.quantized.scale.shape == (40, 2)
    assert torch.equal(floats(regrouped), floats(held))


def test_groups_that_differ_do_not_become_a_row() -> None:
    found, _ = stored(GROUPED, "compressed-pack", weight())
    done = repacked(found, "compressed-pack", None)
    for attempt in (done.outline, done.run):
        with pytest.raises(Refused, match="40 of 40 rows have scales that differ"):
            attempt()


@pytest.mark.parametrize("recipe", FORMS)
def test_an_outline_is_the_weight_without_its_codes(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, format = find_recipe(recipe).scheme, FORMS[recipe]
    static = torch.tensor(0.5) if scheme.inputs is not None and not scheme.inputs.dynamic else None
    found, _ = stored(scheme, format, weight(), static)
    whole = found.load(MODULE)
    asked: set[str] = set()

    def noted(ref: TensorRef) -> Tensor:
        asked.add(ref.name.rpartition(".")[2])
        return read(ref)

    monkeypatch.setattr(quantized_weights, "read", noted)
    outline = found.outline(MODULE)
    assert asked == found.modules[MODULE].keys() - CODES
    assert outline.quantized.qvalues.is_meta
    assert outline.quantized.qvalues.dtype == whole.quantized.qvalues.dtype
    assert outline.quantized.qvalues.shape == whole.quantized.qvalues.shape
    assert torch.equal(outline.quantized.scale.float(), whole.quantized.scale.float())
    assert (outline.dtype, outline.granularity, found.group(outline)) == (
        whole.dtype,
        whole.granularity,
        found.group(whole),
    )


def test_a_repack_that_would_change_a_value_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(weight: Weight, group: int | None) -> Weight:
        made = regroup(weight, group)
        return replace(made, quantized=replace(made.quantized, scale=made.quantized.scale * 2))

    monkeypatch.setattr(module, "regroup", careless)
    found, _ = stored(CHANNEL, "quark-int4:reorder", weight())
    with pytest.raises(Refused, match=r"gate_proj would stand for other values under scales grouped by 128"):
        repacked(found, "compressed-pack", 128).run()


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("F32", torch.float32), ("BF16", torch.bfloat16)])
def test_floats_are_what_the_codes_stand_for(dtype: str, torch_dtype: torch.dtype) -> None:
    tensor = weight()
    found, _ = stored(CHANNEL, "quark-int4:reorder", tensor)
    done = Dequantize(NAME, found.modules[MODULE], found, dtype)
    (data,) = done.run().values()
    made = torch.frombuffer(bytearray(data), dtype=torch_dtype).reshape(40, 256)
    assert torch.equal(made, dequantize(quantize(tensor, CHANNEL.weights)).to(torch_dtype))


def test_smoothing_is_part_of_what_a_weight_stands_for() -> None:
    held = Weight(quantize(weight(), GROUPED.weights), "BF16")
    smoothed = replace(held, pre_quant_scale=torch.linspace(0.5, 2, 256).bfloat16())
    assert smoothed.pre_quant_scale is not None
    assert torch.equal(floats(smoothed), floats(held) * smoothed.pre_quant_scale.float())
