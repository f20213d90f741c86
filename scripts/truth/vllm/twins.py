"""Quantized drafters in vLLM beside their dequantized BF16 twins, and beside the weights they were made from.

A twin alone would share a wrong packing, so what vLLM multiplies with is also held against the rounding
bound of the BF16 source: half a step, or what was clipped by the scale rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftconv.quantization.rounding import round_trip
from draftconv.quantization.scheme import InputScheme
from draftconv.quantization.weight_detection import find_quantized
from draftconv.reference.accept_length import Counts
from truth import controls
from truth.asking import Refusal
from truth.controls import live
from truth.conversions import drafted
from truth.drafts import WAYS, Makers, family, read, target_of, target_path
from truth.replaying import prompts, replayed, traced
from truth.store import Store
from truth.table import Row
from truth.trained import Truth
from truth.vllm import engine
from truth.vllm.observing import JOINED, parameters

ROUNDED_INPUTS = ("int-w4a8", "int-w8a8", "fp8", "int8-all", "fp8-all")
"""Ways after which vLLM rounds activations; after `pack-w4a8` it does not, whatever the file declares."""
ROUNDED_PARTLY = ("g128-all",)
"""Ways after which it rounds those of the head and fc: their outputs are held against simulated ones, the layer's
against the twin's. Packed words have no float32 on a CPU, in which accept lengths are counted."""
DRAFTERS = ("llama-eagle3.1", "mla-eagle3.1")

ENDS: Mapping[str, tuple[int, int]] = {"int4": (-8, 7), "int8": (-128, 127), "fp8": (0, 0)}
"""Smallest and largest quantized value; FP8 has no even steps."""

BF16 = 2.0**-7
"""Relative distance of two outputs that were rounded to bfloat16 after sums in another order."""
SIMULATED = 2.0**-7
"""Relative distance of a product of rounded activations from the same in float32."""
POOLED = 0.02
"""Difference of the accept length with rounded activations from that by replay, which simulates them."""
FEW = 2
"""Verify steps by which counts may differ from those of the twin, out of some hundred."""
SEEN_THROUGH = 1.05
"""Share of the rounding bound where weights are seen through rounded activations."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One quantized drafter against its twin.

    Attributes:
        outputs: largest relative distance of a layer's outputs from the twin's. `plain`: of one whose activations are
            not rounded. `weights`: of its weights.
        bound: largest distance of a weight from its BF16 source, as a share of what rounding allows.
        symmetric: as `outputs`, from our simulation of rounded activations; 0 where there are none.
        nudged: the same with a zero point per token, as torch's own 4-bit product has it.
        modules: quantized ones.
    """

    outputs: float
    plain: float
    weights: float
    bound: float
    symmetric: float
    nudged: float
    modules: int


HEADS = ("ct-head", "awq-head")
"""Ways that the MLA class has no head for: what is made of it is another way's."""
ALL = (
    *(f"{name}@{way}" for name in DRAFTERS for way in WAYS if way not in HEADS or not name.startswith("mla")),
    *(
        f"{name}@{way}"
        for name in ("llama-eagle3-reduced", "mla-eagle3")
        for way in ("ct-g128", "gptq-channel", "seed")
    ),
)
FIXED = (
    *(f"llama-eagle3.1@{way}" for way in WAYS if way not in ("int8-all", "fp8-all", "awq-head")),
    "mla-eagle3.1@ct-channel",
)
"""What every test run asks: each form once, and one of MLA; several forms in one file once."""


def rows(makers: Makers, store: Store, chosen: Sequence[str] = ALL) -> Iterator[Row]:
    for name in chosen:
        yield row(name, makers, store)


def row(name: str, makers: Makers, store: Store) -> Row:
    plain, _, way = name.partition("@")
    path, source = makers.base(name), makers.base(plain)
    twin = makers.converted(path, plain, "vllm", dequantize=True)
    answer = store.get(f"twin {name}", (path, twin, source, Path(__file__)), lambda: measure(name, path, twin, source))
    if "refused" in answer:
        return Row("quantized", name, "loads", "refused", False, answer["refused"])
    measured = Measured(**answer)
    mine, theirs = (drafted(place, plain, store, engine.run) for place in (path, twin))
    counts = f"{mine['steps']} steps, {mine['accepted']} accepted"
    detail = (
        f"{measured.modules} modules; outputs {measured.outputs:.1e}, weights {measured.weights:.1e} from the twin's; "
        f"{measured.bound:.3f} of the rounding bound"
    )
    nearest = min(measured.symmetric, measured.nudged)
    if way not in ROUNDED_INPUTS:
        expected = f"{theirs['steps']} steps, {theirs['accepted']} accepted"
        alike = measured.plain <= BF16 and abs(mine["steps"] - theirs["steps"]) <= FEW
        if way in ROUNDED_PARTLY:
            agrees = alike and measured.bound <= SEEN_THROUGH and nearest <= SIMULATED < 2 * measured.outputs
            detail += f"; head and fc {nearest:.1e} from a product of rounded activations"
        else:
            agrees = alike and measured.bound <= 1 and measured.outputs <= BF16
        if agrees and mine["each"] != theirs["each"]:
            detail += "; counts differ from the twin's by rounding"
        return Row("quantized", name, expected, counts, agrees, detail)
    replayed_, lived = (
        Counts.pooled(simulated_counts(makers, name, path)),
        Counts.pooled(live(path, plain, store, engine.run)),
    )
    apart = lived.accept_length / replayed_.accept_length - 1
    agrees = measured.bound <= SEEN_THROUGH and nearest <= SIMULATED < 2 * measured.outputs and abs(apart) <= POOLED
    how = "symmetric" if nearest == measured.symmetric else "with a zero point per token"
    detail += (
        f"; {nearest:.1e} from a product of activations rounded {how}; accept length {apart:+.2%} from the simulation's"
    )
    expected = f"activations rounded, accept length {replayed_.accept_length:.3f}"
    rounds = "rounded" if nearest < measured.outputs else "in 16 bits"
    return Row(
        "quantized", name, expected, f"activations {rounds}, accept length {lived.accept_length:.3f}", agrees, detail
    )


def simulated_counts(makers: Makers, name: str, path: Path) -> tuple[Counts, ...]:
    """What replay says with the activations rounded as the recipe says."""
    plain = name.partition("@")[0]
    return replayed(traced(makers.work, family(name), controls.LENGTH, len(prompts())), plain, path)


def measure(name: str, path: Path, twin: Path, source: Path) -> dict[str, Any]:
    plain = name.partition("@")[0]
    mine, theirs = engine.look(path, target_path(name)), engine.look(twin, target_path(name))
    for answer in (mine, theirs):
        if isinstance(answer, Refusal):
            return {"refused": answer.error}
    if isinstance(mine, Refusal) or isinstance(theirs, Refusal):
        raise TypeError("a refusal was not told")
    truth = parameters(Truth.of(read(source, plain), read(source, plain).facts, target_of(plain)))
    steps = scales(path, plain)
    inputs = find_inputs(path, plain)
    apart = {module: distance(mine.outputs[module], outputs) for module, outputs in theirs.outputs.items()}
    measurements = [
        Measured(
            apart[module],
            0.0,
            distance(weight, theirs.tensors[f"{module}.weight"]),
            bound(weight, truth[f"{module}.weight"], *steps[module]),
            *simulated(mine.outputs[module], theirs.tensors[f"{module}.weight"], inputs[module]),
            1,
        )
        for module, weight in mine.weights.items()
    ]
    return {
        "outputs": max(apart.values()),
        "plain": max((value for module, value in apart.items() if inputs.get(module) is None), default=0.0),
        "weights": max(measured.weights for measured in measurements),
        "bound": max(measured.bound for measured in measurements),
        "symmetric": max(measured.symmetric for measured in measurements),
        "nudged": max(measured.nudged for measured in measurements),
        "modules": len(measurements),
    }


def distance(mine: Tensor, theirs: Tensor) -> float:
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm())


def bound(weight: Tensor, source: Tensor, scale: Tensor, low: int, high: int) -> float:
    """Largest error of a weight as a share of what rounding to these steps allows.

    Args:
        scale: of every element, [O, I]. `low`, `high`: the ends of the dtype's range; beyond them the scale rule clips.
    """
    value = source.double()
    if low == high:  # E4M3: 3 bits behind the leading one, subnormal below 2^-6 scales
        allowed = torch.maximum(value.abs() * 2.0**-4, scale * 2.0**-10) + 2.0**-8 * value.abs()
        return float(((weight.double() - value).abs() / allowed).max())
    nearest = (value / scale).round().clamp(low, high) * scale
    allowed = torch.maximum(scale / 2, (value - nearest).abs()) + 2.0**-8 * nearest.abs()
    return float(((weight.double() - value).abs() / allowed).max())


def scales(path: Path, name: str) -> Mapping[str, tuple[Tensor, int, int]]:
    """vLLM's module → the scale of every element and the ends of its range, as the file has them."""
    stored = find_quantized(read(path, name))
    by_module: dict[str, tuple[Tensor, int, int]] = {}
    for module in stored.modules:
        quantized = stored.load(module).quantized
        columns = quantized.qvalues.shape[1]
        scale = quantized.scale.double()
        scale_OI = scale.reshape(scale.shape[0], -1).repeat_interleave(
            columns // max(scale.reshape(scale.shape[0], -1).shape[1], 1), dim=1
        )
        ends = ENDS[quantized.dtype]
        by_module[module] = (scale_OI.expand(quantized.qvalues.shape), *ends)
    return joined(by_module)


def joined(by_module: Mapping[str, tuple[Tensor, int, int]]) -> dict[str, tuple[Tensor, int, int]]:
    """The same under vLLM's names: projections that it joins are joined."""
    remaining = dict(by_module)
    fused: dict[str, tuple[Tensor, int, int]] = {}
    for whole, parts in JOINED.items():
        names = [f"layers.0.{part}" for part in parts]
        if all(name in remaining for name in names):
            entries = [remaining.pop(name) for name in names]
            fused[f"model.layers.0.{whole}"] = (torch.cat([entry[0] for entry in entries]), *entries[0][1:])
    return {**fused, **{vllm_name(name): entry for name, entry in remaining.items()}}


def vllm_name(module: str) -> str:
    return module if module == "lm_head" else f"model.{module}"


def find_inputs(path: Path, name: str) -> Mapping[str, InputScheme | None]:
    """vLLM's module → how its activations are rounded, if they are."""
    stored = find_quantized(read(path, name))
    joined_into = {f"layers.0.{part}": f"layers.0.{whole}" for whole, parts in JOINED.items() for part in parts}
    return {
        vllm_name(joined_into.get(module, module)): match.declared.inputs for module, match in stored.matches.items()
    }


def simulated(outputs: Tensor, weight: Tensor, inputs: InputScheme | None) -> tuple[float, float]:
    """Distances from products of rounded activations and dequantized weights; zeros where none are rounded."""
    if inputs is None:
        return 0.0, 0.0
    x_RI = engine.inputs(weight.shape[1]).float()
    products = [torch.nn.functional.linear(x, weight.float()) for x in (round_trip(x_RI, inputs), nudged(x_RI))]
    return distance(outputs, products[0]), distance(outputs, products[1])


def nudged(x_RI: Tensor) -> Tensor:
    """Activations rounded to 8 bits with a zero point per token, and back.

    Source: torch 2.13 `aten/src/ATen/native/cpu/int4mm_kernel.cpp`, ref_dyn_quant_matmul_4bit_channelwise; inferred.
    """
    low, high = x_RI.amin(1, keepdim=True).clamp(max=0), x_RI.amax(1, keepdim=True).clamp(min=0)
    scale = (high - low) / 255
    zero = (-128 - low / scale).round().clamp(-128, 127)
    return (((x_RI / scale).round() + zero).clamp(-128, 127) - zero) * scale
