"""What SGLang makes of joined weights that have scales of their own: its methods, on one joined layer after loading.

`process_weights_after_loading` of ModelOpt's FP8 and NVFP4 runs as it is, on a pretended B200. Two things are stood
in for: rounding to FP8 under a given scale, by plain torch, and the move of a tensor to the GPU, by nothing. How a
kernel multiplies is not run: that it takes one scale for the layer is what this layer has left to give it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.fused_qparams import joined_values
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.rules import LoadVerdict
from truth import asking
from truth.drafts import LAYER, Change, Directory, Makers, read, target_of
from truth.judging import predicted
from truth.sglang import engine
from truth.sglang.observing import sample_of
from truth.sglang.quantized_forms import made
from truth.store import Ask
from truth.table import Row
from truth.trained import Truth

DRAFTER = "llama-eagle3.1"
PARTS = ("gate_proj", "up_proj")
MODULE = "gate_up_proj"
LARGEST = 448.0
"""Of E4M3."""

FP8, NVFP4 = "fp8-tensor, b200", "nvfp4, b200"

SAID: Mapping[str, str] = {
    "sglang-joined-fp8": "weights rounded once more",
    "sglang-joined-inputs": "inputs under the largest",
}
"""Note → what it says, in the words of an observation."""

ASPECTS: Mapping[str, str] = {"sglang-joined-scales": "scales"}


# ── the layers ─────────────────────────────────────────────────────────────────────


def _up(kind: str) -> str:
    return f"{LAYER}mlp.up_proj.{kind}"


def own_fp8_scale(d: Directory) -> Directory:
    """up_proj under a scale that is a third as large: its codes are rounded anew, and its largest are clipped."""
    weight, scale = (
        d.tensors[_up("weight")].float() * d.tensors[_up("weight_scale")],
        d.tensors[_up("weight_scale")] / 3,
    )
    codes = (weight / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return d.put(_up("weight"), codes).put(_up("weight_scale"), scale)


def own_block_scale(d: Directory) -> Directory:
    """up_proj under half the weight_scale_2 and twice the scales of its blocks: the same numbers."""
    blocks = (d.tensors[_up("weight_scale")].float() * 2).clamp(max=LARGEST).to(torch.float8_e4m3fn)
    return d.put(_up("weight_scale"), blocks).put(_up("weight_scale_2"), d.tensors[_up("weight_scale_2")] / 2)


def own_input_scale(d: Directory) -> Directory:
    return d.put(_up("input_scale"), d.tensors[_up("input_scale")] / 3)


CASES: Mapping[tuple[str, str], Change] = {
    (FP8, "gate and up under the same scales"): lambda d: d,
    (FP8, "gate and up under a weight_scale each"): own_fp8_scale,
    (FP8, "gate and up under an input_scale each"): own_input_scale,
    (NVFP4, "gate and up under the same scales"): lambda d: d,
    (NVFP4, "gate and up under a weight_scale_2 each"): own_block_scale,
    (NVFP4, "gate and up under an input_scale each"): own_input_scale,
}
"""Form and what is done to it → how."""


# ── the rows ───────────────────────────────────────────────────────────────────────


def rows(spec: str, makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per case."""
    for (form, what), change in CASES.items():
        base = made(makers, DRAFTER, form)
        with makers.made(change(Directory.open(base))) as path:
            drafter, target = read(path, DRAFTER), target_of(DRAFTER)
            known = frozenset(problem.code for problem in joined_values(drafter))
            verdict = ENGINES["sglang"].check(open_checkpoint(path), drafter.facts, target, parse_engine(spec), known)
            case, mine = f"{DRAFTER}@{form} joined: {what}", _words(verdict)
            find = partial(observed, path, Truth(drafter.facts, {}, target))
            answer = ask("quantized-loader", case, (path, Path(__file__)), find)
            theirs, spoke = str(answer["observed"]), {line.rule.code for line in verdict.lines}
            rules = tuple(code for code in (*SAID, *ASPECTS) if code in spoke)
            yield Row("quantized-loader", case, mine, theirs, mine == theirs, str(answer["detail"]), rules)


def _words(verdict: LoadVerdict) -> str:
    spoke = {line.rule.code for line in verdict.lines}
    return ", ".join((predicted(verdict, ASPECTS), *(said for code, said in SAID.items() if code in spoke)))


def observed(path: Path, truth: Truth) -> dict[str, Any]:
    """What is left of the scales of the joined layer: `observed` as `_words` has it, and details."""
    layer = asking.ask(partial(_settled, path, truth))
    if isinstance(layer, asking.Refusal):
        return {"observed": "refused", "detail": layer.error}
    stored = Directory.open(path).tensors
    own = {kind: [stored[name] for part in PARTS if (name := f"{LAYER}mlp.{part}.{kind}") in stored] for kind in KINDS}
    largest = max(float(scale) for scale in own["input_scale"])
    apart = len({float(scale) for scale in own["input_scale"]}) > 1
    if abs(layer["input_scale"] / largest - 1) > 1e-6:
        return {"observed": "no input scale of theirs", "detail": f"{layer['input_scale']} instead of {largest}"}
    word, detail = (_fp4 if own["weight_scale_2"] else _fp8)(layer, own)
    return {"observed": f"{word}, {SAID['sglang-joined-inputs']}" if apart else word, "detail": detail}


KINDS = ("weight", "weight_scale", "weight_scale_2", "input_scale")


def _fp8(layer: Mapping[str, Any], own: Mapping[str, list[Tensor]]) -> tuple[str, str]:
    """Codes times the one scale that is left, beside what is stored."""
    weights = [codes.float() * scale for codes, scale in zip(own["weight"], own["weight_scale"], strict=True)]
    largest = max(float(scale) for scale in own["weight_scale"])
    again = [
        (weight / largest).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float() * largest for weight in weights
    ]
    theirs = torch.tensor(layer["weight"])
    for word, mine in (("loads", weights), (f"loads, {SAID['sglang-joined-fp8']}", again)):
        if torch.equal(theirs, torch.cat(mine)):
            return word, f"weight_scale {layer['weight_scale']:.6g}"
    return "loads other weights", ""


def _fp4(layer: Mapping[str, Any], own: Mapping[str, list[Tensor]]) -> tuple[str, str]:
    """The scale of the product, codes and the scales of blocks, beside what is stored."""
    scales = [float(scale) for scale in own["weight_scale_2"]]
    blocks = sorted(torch.cat([part.view(torch.uint8).flatten() for part in own["weight_scale"]]).tolist())
    if layer["blocks"] != blocks or layer["codes"] != torch.cat(own["weight"]).flatten().tolist():
        return "loads other weights", ""
    kept = all(abs(layer["weight_scale"] / scale - 1) < 1e-6 for scale in scales)
    told = ", ".join(f"{scale:.6g}" for scale in scales)
    return "loads" if kept else "mis-read: scales", f"multiplied under {layer['weight_scale']:.6g}, stored are {told}"


# ── in the fork ────────────────────────────────────────────────────────────────────


def _settled(path: Path, truth: Truth) -> dict[str, Any]:
    """The joined layer after its method has laid it out, in numbers."""
    from sglang.srt.layers.quantization import modelopt_quant, utils

    layer = next(
        module
        for name, module in engine.loaded(path, sample_of(truth, truth.target.max_positions), "cuda").named_modules()
        if name.endswith(MODULE)
    )
    utils.scaled_fp8_quant = _rounded
    modelopt_quant.get_platform = lambda: SimpleNamespace(is_blackwell=True, is_sm120=False)
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    with torch.no_grad():
        layer.quant_method.process_weights_after_loading(layer)
    if not hasattr(layer, "alpha"):
        scale = layer.weight_scale.max()
        weight_OI = layer.weight.t().float() * scale
        return {"input_scale": float(layer.input_scale), "weight_scale": float(scale), "weight": weight_OI.tolist()}
    inputs = 1 / float(layer.input_scale_inv)
    return {
        "input_scale": inputs,
        "weight_scale": float(layer.alpha) / inputs,
        "blocks": sorted(layer.weight_scale_interleaved.view(torch.uint8).flatten().tolist()),
        "codes": layer.weight.flatten().tolist(),
    }


def _rounded(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Plain torch for the kernel that rounds to FP8 under a given scale."""
    return (weight.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale
