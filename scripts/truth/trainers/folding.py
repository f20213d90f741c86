"""One norm in a class that has two: what it would cost to fold the embedding's norm into q, k and v for ModelOpt.

ModelOpt's first layer normalises the state by `input_layernorm`, the embedding's own, and then by `hidden_norm`. With
ones in `input_layernorm` the first of the two leaves a state's direction alone, and what the embedding's half lost is
multiplied into the weights that read it. That is no spelling of the drafter: eps counts twice, and 16 bits round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from draftconv.checkpoint import open_checkpoint
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.reference.load import load_drafter
from truth.trainers.shared import Directory, target_of
from truth.trainers.steps import Inputs, compared, reference_steps
from truth.trainers.table import Row
from truth.trainers.trainer import Trainer

SOURCES = ("llama-eagle3", "mla-eagle3")
NORM = "layers.0.input_layernorm.weight"
READERS = ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")
"""What reads the embedding beside the state, in the first half of its columns."""

SMALL = 1 / 32
"""States so small that eps is no longer lost beside them: 1e-6 against a mean square of 2e-3."""

CASES: Mapping[str, tuple[torch.dtype, float, str]] = MappingProxyType({
    "in float32": (torch.float32, 1.0, "equal"),
    "in float32, small states": (torch.float32, SMALL, "differs: eps counts twice"),
    "in bfloat16": (torch.bfloat16, 1.0, "differs: folded weights are rounded"),
})  # fmt: skip
"""Name → dtype of the weights, size of the states, and what becomes of it."""


def folded(d: Directory, dtype: torch.dtype) -> Directory:
    """A drafter with ones in place of the embedding's norm; products in float64, rounded once to `dtype`."""
    norm = d.tensors[NORM].double()
    for name in (f"layers.0.self_attn.{reader}.weight" for reader in READERS):
        if name in d.tensors:
            weight = d.tensors[name].double().clone()
            weight[:, : len(norm)] *= norm
            d = d.put(name, weight.to(dtype))
    return d.put(NORM, torch.ones_like(norm)).cast(dtype)


def rows(asked: Trainer, base: str, path: Path, work: Path) -> Iterator[Row]:
    """A drafter of one norm, folded in every way, run by the trainer's class of two."""
    target = target_of(base)
    drafter = read_drafter(open_checkpoint(path), ReadOptions(target=target))
    model = load_drafter(drafter, target)
    first: Any = model.layers[0]
    first.double_norm = False  # whatever its file says: it was trained with one
    for what, (dtype, size, predicted) in CASES.items():
        out = work / "folded" / f"{base} {what}".replace(" ", "-")
        folded(Directory.open(path), dtype).write(out)
        inputs = Inputs.of(drafter.facts)
        inputs = replace(inputs, states_BTAW=inputs.states_BTAW * size)
        theirs = asked.run(asked.load(out, model.embed_tokens.weight), inputs)
        observed, detail = compared(reference_steps(model, inputs), theirs)
        agrees = observed == predicted.partition(":")[0]
        yield Row("folded", "modelopt", f"{base}, its norm folded, {what}", predicted, observed, agrees, detail)
