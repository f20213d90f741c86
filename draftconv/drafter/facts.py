"""The facts of a drafter: everything its forward pass depends on besides the weights.

Every layout and every engine's reading of a checkpoint ends in the same `Facts`, so
"would this engine compute what was trained?" is a comparison of two of them.
Sizes are element counts. Layer ids exist here only as *boundaries* (see `AuxLayers`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

Feedback = Literal["pre-norm", "post-norm"]
Fusion = Literal["plain", "fc_norm", "norm_before_fc", "both"]
VocabOrder = Literal["full", "ascending", "unordered"]
Scalar = bool | int | float | str

UNDECLARED = "undeclared"
"""First word of `Facts.quantization` when no config describes the quantized tensors."""


DEFAULT_EPS = 1e-6
"""rms_norm_eps where a config names none: of transformers 5.19 LlamaConfig, Qwen3Config and DeepseekV3Config."""


class AuxLayers(enum.Enum):
    """What is known of the captured boundaries when the file names none."""

    DEFAULT = "default"  # the producer's rule: (2, L//2, L-3) of a target with L layers
    UNKNOWN = "unknown"


def describe_boundaries(boundaries: tuple[int, ...] | AuxLayers) -> str:
    """Captured boundaries, or what is known instead, in words."""
    match boundaries:
        case AuxLayers.DEFAULT:
            return "the default triple (2, L//2, L-3)"
        case AuxLayers.UNKNOWN:
            return "unknown"
        case known:
            return ", ".join(map(str, known))


@dataclass(frozen=True, slots=True)
class Rope:
    """One effective rotary embedding, whichever of the config spellings it came from.

    `scaling` holds the numeric parameters of `kind` under their usual names (`factor`,
    `original_max_position_embeddings`, `beta_fast`, `mscale` …); a key that the file
    lacks is lacking here too, because engines treat a missing `mscale` differently from 1.
    `pairs` says which elements rotate together: `halves` (NeoX, i and i + d/2) or
    `interleaved` (GPT-J, 2i and 2i + 1).
    """

    theta: float
    pairs: Literal["halves", "interleaved"]
    kind: str = "default"
    scaling: Mapping[str, Scalar | tuple[Scalar, ...]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Gqa:
    """Llama-style attention: `heads` queries over `kv_heads` keys of `head_dim` elements."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False


@dataclass(frozen=True, slots=True)
class Mla:
    """DeepSeek-style multi-head latent attention; `q_lora` None means an uncompressed query."""

    heads: int
    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    v: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All that serving needs to know of a drafter.

    Attributes:
        layers: decoder layers; only the first reads the embedding beside the state.
        hidden: width H of the drafter. `target_hidden`: width Ht of the captured states.
        vocab: rows V of the target's vocabulary. `draft_vocab`: rows Vd of the head.
        aux: number A of captured boundaries; `fc.weight` is [H, A*Ht].
        boundaries: ascending residual-stream boundaries 0…L of the target (boundary i
            enters decoder layer i; L leaves the last one, before the final norm), or what
            is known instead.
        fusion: what normalises the captured states before `fc` (EAGLE-3.1: `fc_norm`);
            `both` is a contradiction that no trainer writes and engines order differently.
        feedback: which state the next draft step reads (EAGLE-3.1: `post-norm`).
        norm_before_residual: the first residual is the normed state instead of the raw one.
        double_norm: trained with m = hidden_norm(input_layernorm(s)), as ModelOpt
            0.41-0.47 does; no engine serves it so.
        window: sliding-window width of every layer, if any.
    """

    attention: Gqa | Mla
    layers: int
    hidden: int
    target_hidden: int
    intermediate: int
    vocab: int
    draft_vocab: int
    aux: int
    boundaries: tuple[int, ...] | AuxLayers
    rope: Rope
    eps: float
    fusion: Fusion = "plain"
    feedback: Feedback = "pre-norm"
    norm_before_residual: bool = False
    double_norm: bool = False
    activation: str = "silu"
    mlp_bias: bool = False
    fc_bias: bool = False
    vocab_order: VocabOrder = "full"
    own_embedding: bool = True
    own_head: bool = True
    max_positions: int | None = None
    window: int | None = None
    quantization: str | None = None

    @property
    def reduced_vocab(self) -> bool:
        """True when the head predicts a subset of the target's tokens through `d2t`."""
        return self.vocab_order != "full"

    @property
    def computed(self) -> Facts:
        """Only what engines compute: alike in files that store other tables or were made by other trainers."""
        return replace(self, own_embedding=True, own_head=True, double_norm=False, max_positions=None)
