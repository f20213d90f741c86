"""One drafter per thing that a forward pass can get wrong, and the wrong reading beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from draftconv.drafter.facts import Facts, Gqa, Mla, Rope
from draftconv.reference.drafter import DrafterModel


@dataclass(frozen=True)
class Variant:
    """`wrong` reads the same weights, less those ending in `lost`, by facts that differ in one point.

    Its logits must differ from the right ones.
    """

    facts: Facts
    wrong: Facts
    lost: str = "nothing"


def rope(kind: str = "default", pairs: Any = "halves", **scaling: float) -> Rope:
    return Rope(theta=10000.0, pairs=pairs, kind=kind, scaling=MappingProxyType(scaling))


LLAMA = Facts(
    attention=Gqa(heads=4, kv_heads=4, head_dim=4),
    layers=1,
    hidden=16,
    target_hidden=16,
    intermediate=24,
    vocab=40,
    draft_vocab=40,
    aux=3,
    boundaries=(2, 4, 5),
    rope=rope(),
    eps=1e-5,
)
MLA_SHAPE = Mla(heads=3, q_lora=10, kv_lora=12, nope=4, rope=8, v=6)
MLA = replace(LLAMA, attention=MLA_SHAPE, rope=rope(pairs="interleaved"))

YARN = {"factor": 64.0, "original_max_position_embeddings": 4096.0, "beta_fast": 32.0, "beta_slow": 1.0}
BOTH = {"mscale": 1.0, "mscale_all_dim": 1.0}
UNEQUAL = {"mscale": 1.0, "mscale_all_dim": 0.5}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512.0,
}
WIDE_HEADS = Gqa(heads=4, kv_heads=2, head_dim=8)
WIDE = replace(LLAMA, attention=WIDE_HEADS)


def variant(base: Facts, wrong: Mapping[str, Any] | str, **changes: Any) -> Variant:
    facts = replace(base, **changes)
    return Variant(facts, facts, wrong) if isinstance(wrong, str) else Variant(facts, replace(facts, **wrong))


VARIANTS: Mapping[str, Variant] = {
    "llama": variant(LLAMA, {"rope": rope(pairs="interleaved")}),
    "llama gqa, wide heads": variant(WIDE, {"rope": rope(pairs="interleaved")}),
    "llama qk-norm": variant(LLAMA, {"attention": WIDE_HEADS}, attention=replace(WIDE_HEADS, qk_norm=True)),
    "llama qkv bias": variant(LLAMA, "q_proj.bias", attention=replace(WIDE_HEADS, qkv_bias=True)),
    "llama o bias": variant(LLAMA, "o_proj.bias", attention=replace(WIDE_HEADS, o_bias=True)),
    "llama mlp bias": variant(LLAMA, "up_proj.bias", mlp_bias=True),
    "llama fc bias": variant(LLAMA, "fc.bias", fc_bias=True),
    "llama two layers": variant(LLAMA, {"layers": 1}, layers=2),
    "llama three layers": variant(LLAMA, {"layers": 2}, layers=3),
    "llama four states": variant(LLAMA, {"aux": 3}, aux=4, boundaries=(2, 4, 5, 8)),
    "llama narrow target": variant(LLAMA, {"eps": 1e-2}, target_hidden=12),
    "llama fc_norm": variant(LLAMA, {"fusion": "plain"}, fusion="fc_norm"),
    "llama post-norm": variant(LLAMA, {"feedback": "pre-norm"}, feedback="post-norm"),
    "llama 3.1": variant(LLAMA, {"feedback": "pre-norm"}, fusion="fc_norm", feedback="post-norm"),
    "llama norm_before_fc": variant(LLAMA, {"fusion": "plain"}, fusion="norm_before_fc"),
    "llama norm_before_residual": variant(LLAMA, {"norm_before_residual": False}, norm_before_residual=True),
    "llama window": variant(LLAMA, {"window": None}, window=3),
    "llama window within the chain": variant(LLAMA, {"window": 2}, window=1),
    "llama linear rope": variant(WIDE, {"rope": rope()}, rope=rope("linear", factor=4.0)),
    "llama dynamic rope": variant(WIDE, {"rope": rope()}, rope=rope("dynamic", factor=4.0)),
    "llama llama3 rope": variant(WIDE, {"rope": rope()}, rope=rope("llama3", **LLAMA3)),
    "llama yarn": variant(WIDE, {"rope": rope("yarn", **YARN, **BOTH)}, rope=rope("yarn", **YARN)),
    "llama yarn, both mscales": variant(WIDE, {"rope": rope("yarn", **YARN)}, rope=rope("yarn", **YARN, **BOTH)),
    "llama yarn, unequal mscales": variant(
        WIDE, {"rope": rope("yarn", **YARN, **BOTH)}, rope=rope("yarn", **YARN, **UNEQUAL)
    ),
    "mla": variant(MLA, {"rope": rope(pairs="halves")}),
    "mla plain query": variant(MLA, {"rope": rope(pairs="halves")}, attention=replace(MLA_SHAPE, q_lora=None)),
    "mla 3.1": variant(MLA, {"feedback": "pre-norm"}, fusion="fc_norm", feedback="post-norm"),
    "mla two layers": variant(MLA, {"layers": 1}, layers=2),
    "mla yarn, both mscales": variant(
        MLA,
        {"rope": rope("yarn", "interleaved", **YARN)},
        rope=rope("yarn", "interleaved", **YARN, **BOTH),
    ),
    "mla yarn, no mscales": variant(
        MLA,
        {"rope": rope("yarn", "interleaved", **YARN, **BOTH)},
        rope=rope("yarn", "interleaved", **YARN),
    ),
    "mla yarn, unequal mscales": variant(
        MLA,
        {"rope": rope("yarn", "interleaved", **YARN, **BOTH)},
        rope=rope("yarn", "interleaved", **YARN, **UNEQUAL),
    ),
}


def random_tensors(facts: Facts, seed: int = 0) -> dict[str, Tensor]:
    """Weights large enough that every part of the forward matters."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, like in DrafterModel(facts).state_dict().items():
        noise = torch.randn(like.shape, generator=generator, dtype=torch.float64)
        tensors[name] = 1 + 0.3 * noise if "norm" in name else 0.4 * noise
    if facts.reduced_vocab:
        kept = torch.randperm(facts.vocab, generator=generator)[: facts.draft_vocab]
        kept = kept.sort().values if facts.vocab_order == "ascending" else kept
        tensors["d2t"] = kept - torch.arange(facts.draft_vocab)
    return tensors


def random_text(facts: Facts, rows: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Target states [rows, A, W] and `rows` + 3 token ids."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, facts.aux, facts.target_hidden, generator=generator, dtype=torch.float64)
    return states, torch.randint(0, facts.vocab, (rows + 3,), generator=generator)
