"""What SGLang built, filled and computed, beside what the drafter is: differences by aspect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.checks import target_table
from draftconv.drafter.facts import AuxLayers
from draftconv.reference.load import forward_of, to_torch
from truth.sglang.engine import Draft
from truth.sglang.sample import ROWS, Sample, drawn
from truth.trained import TABLES, Truth

JOINED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
UNUSED = re.compile(r"^layers\.[1-9]\d*\.input_layernorm\.")
"""Built by the base class in every layer, and read in the first only."""

NEAR = 2e-4
"""Largest relative distance of logits and states that are the same: two orders of summation in float32."""

SCALES_OF_CACHE = (".k_scale", ".v_scale")
"""Made for any quantized drafter and 1 where no file has them."""

T = TypeVar("T")


def sample_of(truth: Truth, positions: int | None) -> Sample:
    """What a drafter of this target is tried with."""
    embedding, head = (_table(truth, name) for name in ("embed_tokens.weight", "lm_head.weight"))
    tokens = torch.randint(0, embedding.shape[0], (ROWS,), generator=torch.Generator().manual_seed(5))
    width = truth.target.hidden or truth.facts.target_hidden
    return Sample(tokens, drawn(ROWS, truth.facts.hidden, seed=99), width, positions, embedding, head)


def _table(truth: Truth, name: str) -> Tensor:
    table = target_table(truth.target, TABLES[name])
    if table is None:
        raise ValueError(f"the target has no {name}")
    return to_torch(table).float()


def differences(draft: Draft, truth: Truth, sample: Sample) -> dict[str, list[str]]:
    """Aspect → what differs, sorted; computation is looked at where every weight is right."""
    by_aspect: dict[str, list[str]] = {}
    for aspect, detail in _flags(draft, truth):
        by_aspect.setdefault(aspect, []).append(detail)
    if "vocabulary" not in by_aspect:
        for detail in _weights(draft, truth):
            by_aspect.setdefault("weights", []).append(detail)
    if not {"weights", "vocabulary"} & by_aspect.keys():
        for detail in _computed(draft, truth, sample):
            by_aspect.setdefault("computation", []).append(detail)
    return {aspect: sorted(details) for aspect, details in sorted(by_aspect.items())}


def _flags(draft: Draft, truth: Truth) -> Iterator[tuple[str, str]]:
    facts, target = truth.facts, truth.target
    boundaries = default_triple(target.layers) if facts.boundaries is AuxLayers.DEFAULT else facts.boundaries
    if draft.captured is None:
        yield "layers", "the last state alone"
    elif isinstance(boundaries, tuple) and draft.captured != tuple(sorted(boundaries)):
        yield "layers", f"{list(draft.captured)} instead of {list(boundaries)}"
    if facts.vocab != target.vocab:
        yield "vocabulary", f"{facts.vocab} tokens, the target has {target.vocab}"
    ids = truth.ids
    if ids is None and draft.hot is not None and not torch.equal(draft.hot, torch.arange(len(draft.hot))):
        yield "d2t", "draft ids are mapped that need no map"
    if ids is not None and draft.hot is None:
        yield "d2t", "draft ids are taken for target ids"
    if ids is not None and draft.hot is not None and not _same(draft.hot, ids):
        yield "d2t", "draft ids are mapped to other tokens"


def _same(hot: Tensor, ids: Tensor) -> bool:
    """Whether every draft id of the head stands for its token; entries behind them are never asked for."""
    return not hot.dtype.is_floating_point and torch.equal(hot[: len(ids)].long(), ids)


def parameters(truth: Truth, *, shared: frozenset[str]) -> dict[str, Tensor]:
    """The draft class's parameters, joined and under our layer names, as the drafter's tensors fill them."""
    filled: dict[str, Tensor] = {}
    remaining = {name: tensor for name, tensor in truth.tensors.items() if name not in shared and name != "d2t"}
    for layer in range(truth.facts.layers):
        for joined, parts in JOINED.items():
            for kind in ("weight", "bias"):
                for block in ("self_attn", "mlp"):
                    names = [f"layers.{layer}.{block}.{part}.{kind}" for part in parts]
                    if all(name in remaining for name in names):
                        tensors = [remaining.pop(name) for name in names]
                        filled[f"layers.{layer}.{block}.{joined}.{kind}"] = torch.cat(tensors)
    later = re.compile(r"^(layers\.[1-9]\d*)\.input_layernorm\.")
    return filled | {later.sub(r"\1.hidden_norm.", name): tensor for name, tensor in remaining.items()}


def bare(name: str) -> str:
    """A parameter's name with our name of the layer."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def _weights(draft: Draft, truth: Truth) -> Iterator[str]:
    """Parameters that do not hold what the drafter has; a table that was replaced is held against the drafter's own."""
    for name in draft.shared & truth.tensors.keys():
        if not torch.equal(truth.tensors[name].float(), _table(truth, name)):
            yield f"the target's {name} stands in its place"
    expected = parameters(truth, shared=draft.shared)
    built = {bare(name): tensor for name, tensor in draft.tensors.items() if bare(name) not in draft.shared}
    for name, mine in expected.items():
        theirs = built.get(name)
        if theirs is None:
            yield f"{name} is not built"
        elif not any(torch.equal(theirs.to(mine.dtype), same) for same in (mine, _padded(mine, theirs, name))):
            yield f"{name} holds something else"
    for name in built.keys() - expected.keys():
        if not UNUSED.match(name):
            yield f"{name} is built and filled by nothing"


def _padded(mine: Tensor, theirs: Tensor, name: str) -> Tensor:
    """An MLP's weight filled up with zeros to the size that was built: that it computes the same is seen below."""
    if ".mlp." not in name or mine.dim() != 2 or any(a > b for a, b in zip(mine.shape, theirs.shape, strict=True)):
        return mine
    halves = 2 if "gate_up_proj" in name else 1
    more = [(b - a) for a, b in zip(mine.shape, theirs.shape, strict=True)]
    padding = (0, more[1], 0, more[0] // halves)
    return torch.cat([torch.nn.functional.pad(part, padding) for part in mine.chunk(halves)])


def _computed(draft: Draft, truth: Truth, sample: Sample) -> Iterator[str]:
    """Two steps beside those of the reference forward."""
    model = forward_of(truth.facts).from_tensors(truth.facts, truth.filled())
    wide_TAW = sample.states(truth.facts.aux).reshape(-1, truth.facts.aux, truth.facts.target_hidden)
    for what, state_TH, theirs in (
        ("the first step", model.fuse(wide_TAW), draft.first),
        ("a later step", sample.fed, draft.second),
    ):
        if draft.captured is None and what == "the first step":
            continue
        z_TH = model.step(state_TH[None], sample.tokens[None], model.cache())[0]
        for output, mine, other in zip(
            ("logits", "fed-back state"), (model.logits(z_TH), model.feedback(z_TH)), theirs, strict=True
        ):
            if distance := _far(other, mine):
                yield f"{output} of {what}: {distance}"


def _far(theirs: Tensor, mine: Tensor) -> str:
    if theirs.shape != mine.shape:
        return f"{list(theirs.shape)} instead of {list(mine.shape)}"
    if not torch.isfinite(theirs).all():
        return "not finite"
    distance = float((theirs.double() - mine.double()).norm() / mine.double().norm())
    return "" if distance < NEAR else f"{distance:.2g} away"
