"""What vLLM built, beside what the drafter is: differences by aspect, in the words of the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.checks import target_table
from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Mla
from draftconv.reference.load import to_torch
from draftconv.reference.rope import Rotary, softmax_multiplier
from truth.trained import TABLES, Truth
from truth.vllm import engine

JOINED: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.fused_qkv_a_proj": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
UNUSED = re.compile(r"^model\.layers\.[1-9]\d*\.hidden_norm\.")
"""Built in every layer and read in the first only."""
FUSION = re.compile(r"^model\.(fc_norm|input_norm)\.")

ROUNDED = 2.0**-5
"""Relative difference of a weight that was seen through activations rounded to 8 bits."""
TURNED = 0.02
"""Largest difference of a rotated query of elements up to 2 in bfloat16; another base or pairing is off by 1."""


def parameters(truth: Truth) -> dict[str, Tensor]:
    """vLLM's parameters, fused and renamed, as the drafter's tensors fill them."""
    filled: dict[str, Tensor] = {}
    remaining = dict(truth.tensors)
    for layer in range(truth.facts.layers):
        for joined, parts in JOINED.items():
            for kind in ("weight", "bias"):
                names = [f"layers.{layer}.{part}.{kind}" for part in parts]
                if all(name in remaining for name in names):
                    filled[f"model.layers.{layer}.{joined}.{kind}"] = torch.cat([remaining.pop(name) for name in names])
    for name, tensor in remaining.items():
        if name == "d2t":
            filled["draft_id_to_target_id"] = tensor
        else:
            filled[name if name.startswith("lm_head.") else f"model.{name}"] = tensor
    return filled


def differences(draft: engine.Draft, truth: Truth) -> dict[str, list[str]]:
    """Aspect → what is built otherwise than the drafter is, sorted."""
    by_aspect: dict[str, list[str]] = {}
    for aspect, detail in (*_flags(draft.built, truth), *_weights(draft, truth)):
        by_aspect.setdefault(aspect, []).append(detail)
    return {aspect: sorted(details) for aspect, details in sorted(by_aspect.items())}


def _flags(built: Mapping[str, object], truth: Truth) -> Iterator[tuple[str, str]]:
    facts, target = truth.facts, truth.target
    boundaries = default_triple(target.layers) if facts.boundaries is AuxLayers.DEFAULT else facts.boundaries
    fc_norm, whole = facts.fusion in ("fc_norm", "both"), facts.fusion in ("norm_before_fc", "both")
    for aspect, mine, theirs in (
        ("feedback", facts.feedback, built["feedback"]),
        ("fusion", (fc_norm, whole), (built["fc_norm"], built["norm_before_fc"])),
        ("residual", facts.norm_before_residual, built["residual"]),
        ("eps", [facts.eps], built["eps"]),
        ("window", facts.window, built["window"]),
        ("causal", True, built["causal"]),
        ("indexer", False, built["indexer"]),
        ("vocabulary", target.vocab, built["vocab"]),
        ("layers", boundaries, built["captured"]),
        ("depth", facts.layers, built["layers"]),
    ):
        if mine != theirs:
            yield aspect, f"{theirs} instead of {mine}"
    yield from _rope(built, facts)


def _rope(built: Mapping[str, object], facts: Facts) -> Iterator[tuple[str, str]]:
    """The rotation of one query, and the scale of the softmax."""
    match facts.attention:
        case Mla(nope=nope, rope=dim):
            latent, scale = True, (nope + dim) ** -0.5 * softmax_multiplier(facts.rope)
        case Gqa(head_dim=dim):
            latent, scale = False, dim**-0.5
    turned_TD = built["rotated"]
    if not isinstance(turned_TD, Tensor):
        raise TypeError("the rotated query is no tensor")
    if turned_TD.shape[1] != dim:
        yield "weights", f"{turned_TD.shape[1]} elements of a head are turned instead of {dim}"
        return
    query_1T1D = engine.probe(dim)[None, :, None, :]
    wanted_TD = Rotary.of(facts.rope, dim, latent=latent)(query_1T1D, torch.arange(engine.POSITIONS))[0, :, 0]
    if float((turned_TD - wanted_TD).abs().max()) > TURNED:
        yield "rope", "a query is turned otherwise"
    theirs = built["scale"]
    if not isinstance(theirs, float) or abs(theirs / scale - 1) > 1e-6:
        yield "rope", f"softmax scale {theirs} instead of {scale:.6f}"


def _weights(draft: engine.Draft, truth: Truth) -> Iterator[tuple[str, str]]:
    expected = parameters(truth)
    actual = {**draft.tensors, **{f"{name}.weight": tensor for name, tensor in draft.weights.items()}}
    lent = {f"model.{name}" if name.startswith("embed") else name: name for name in TABLES if name not in draft.own}
    fusion = dict(_flags(draft.built, truth)).get("fusion")
    for name, mine in expected.items():
        aspect = "d2t" if name.startswith("draft_id") else "weights"
        theirs = _lent(truth, lent[name]) if name in lent else actual.get(name)
        if theirs is None:
            if not (fusion and FUSION.match(name)):
                yield aspect, f"{name} is not built"
        elif not _equal(theirs, mine, rounded=name.removesuffix(".weight") in draft.weights):
            yield aspect, f"{name} holds something else"
    for name in actual:
        if name not in expected and not UNUSED.match(name) and not (fusion and FUSION.match(name)):
            aspect = "vocabulary" if name.startswith("draft_id") else "weights"
            yield aspect, f"{name} is built and filled by nothing"


def _lent(truth: Truth, name: str) -> Tensor | None:
    """The target's own table."""
    table = target_table(truth.target, TABLES[name])
    return None if table is None else to_torch(table).bfloat16()


def _equal(theirs: Tensor, mine: Tensor, *, rounded: bool) -> bool:
    if theirs.shape != mine.shape:
        return False
    if torch.equal(theirs.to(mine.dtype), mine):
        return True
    return rounded and float((theirs.float() - mine.float()).norm() / mine.float().norm()) < ROUNDED
