"""Inputs of joined FP8 weights that were calibrated apart: under which of their scales vLLM rounds them.

The products of the joined layer are held against two simulations, one under the largest scale and one in which every
weight has its own; the scales are so far apart that under the smaller one inputs are clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.fused_qparams import joined_values
from draftconv.engines import ENGINES, parse_engine
from truth.asking import Refusal
from truth.drafts import LAYER, Directory, Makers, read, target_of, target_path
from truth.store import Ask
from truth.table import Row
from truth.vllm import engine
from truth.vllm.loader_cases import static_fp8
from truth.vllm.twins import SIMULATED, distance

RULE = "vllm-joined-inputs"
DRAFTER = "mla-eagle3"
"""A Llama-style one under static FP8 does not run on a CPU: rule vllm-static-fp8-cpu."""

PARTS = ("gate_proj", "up_proj")
MODULE = "model.layers.0.mlp.gate_up_proj"
LARGEST = 448.0
"""Of E4M3."""

EQUAL, APART = (0.05, 0.05), (0.004, 0.05)
"""Input scales of gate and up: inputs reach 4, and 448 * 0.004 is less than that."""


def name(scales: Sequence[float]) -> str:
    how = "one input scale" if len(set(scales)) == 1 else "an input scale each"
    return f"{DRAFTER}@fp8: {how} for gate and up"


def names() -> frozenset[str]:
    """Names of the rows."""
    return frozenset(map(name, (EQUAL, APART)))


def rows(spec: str, makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row with scales that are equal, and one with scales that are not."""
    base = makers.base(f"{DRAFTER}@fp8")
    for scales in (EQUAL, APART):
        directory = static_fp8(shared=True)(Directory.open(base))
        for part, scale in zip(PARTS, scales, strict=True):
            directory = directory.put(f"{LAYER}mlp.{part}.input_scale", torch.tensor(scale))
        with makers.made(directory) as path:
            yield _joined_row(scales, path, spec, ask)


def _joined_row(scales: Sequence[float], path: Path, spec: str, ask: Ask) -> Row:
    drafter = read(path, DRAFTER)
    known = frozenset(problem.code for problem in joined_values(drafter))
    verdict = ENGINES["vllm"].check(open_checkpoint(path), drafter.facts, target_of(DRAFTER), parse_engine(spec), known)
    rules = tuple(line.rule.code for line in verdict.lines if line.rule.code == RULE)
    mine = f"{verdict.status}, inputs under {'the largest' if rules else 'their own'}"
    answer = ask("loader", name(scales), (path, Path(__file__)), partial(observed, path))
    theirs = str(answer["observed"])
    return Row("loader", name(scales), mine, theirs, mine == theirs, str(answer["detail"]), rules)


def observed(path: Path) -> dict[str, Any]:
    """Under which scales the inputs of the joined layer were rounded."""
    draft = engine.look(path, target_path(DRAFTER))
    if isinstance(draft, Refusal):
        return {"observed": "refused", "detail": draft.error}
    stored = Directory.open(path).tensors
    scales = [float(stored[f"{LAYER}mlp.{part}.input_scale"]) for part in PARTS]
    weights = [
        stored[f"{LAYER}mlp.{part}.weight"].float() * stored[f"{LAYER}mlp.{part}.weight_scale"].float()
        for part in PARTS
    ]
    x_RI = engine.inputs(weights[0].shape[1]).float()
    own = _products(x_RI, weights, scales)
    largest = _products(x_RI, weights, [max(scales)] * len(scales))
    apart = distance(draft.outputs[MODULE], own), distance(draft.outputs[MODULE], largest)
    words = {"their own": apart[0], "the largest": apart[1]}
    word = next((word for word, far in words.items() if far < SIMULATED), "no scale of theirs")
    detail = f"{apart[0]:.1e} from products under their own, {apart[1]:.1e} under the largest"
    return {"observed": f"loads, inputs under {word}", "detail": detail}


def _products(x_RI: Tensor, weights: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
    """Of inputs that are rounded to FP8 under one scale for each weight: [R, O] of all weights side by side."""
    products = []
    for weight_OI, scale in zip(weights, scales, strict=True):
        codes_RI = (x_RI / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        products.append(torch.nn.functional.linear(codes_RI.float() * scale, weight_OI))
    return torch.cat(products, dim=1)
