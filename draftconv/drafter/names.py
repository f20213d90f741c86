"""From any spelling of a tensor name to the canonical one.

Reading is liberal: every prefix and alias that a trainer or a hand-made script has been
seen to write is understood here, whatever the layout, and reported where engines would
stumble on it. Writing is strict and belongs to the layouts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from draftconv.errors import BadCheckpoint

PREFIXES = ("eagle_module.", "draft_model.", "model.")
"""ModelOpt's and TorchSpec's training wrappers, and Automodel's / Hugging Face's root."""

ALIASES: tuple[tuple[str, str], ...] = (
    (r"^midlayer\.([0-9]+)\.", r"layers.\1."),  # ModelOpt Megatron, several layers
    (r"^midlayer\.", "layers.0."),
    (r"^hidden_norm\.", "layers.0.hidden_norm."),  # ModelOpt ≤ 0.40 before export
    (r"^input_embeds_norm\.", "layers.0.input_layernorm."),
    (r"^eagle_lm_head\.", "lm_head."),
    (r"^out_norm\.", "norm."),  # LumenRL-style exports
    (r"^aux_norm_low\.", "fc_norm.0."),  # first EAGLE-3.1 files; SGLang still accepts them
    (r"^aux_norm_mid\.", "fc_norm.1."),
    (r"^aux_norm_high\.", "fc_norm.2."),
)

STALE: tuple[tuple[str, str], ...] = (
    (r"(^|\.)verifier_\w+\.", "the verifier's own tensors, kept by speculators for training"),
    (r"(^|\.)rotary_emb\.", "a rotary buffer that every engine computes itself"),
    (r"(^|\.)target_model\.", "the target's own weights, kept by a training wrapper"),
)

QPARAMS = re.compile(
    r"\.(weight_scale|weight_scale_2|weight_scale_inv|weight_zero_point|weight_shape|weight_packed|weight_g_idx"
    r"|weight_global_scale|input_global_scale|input_scale|input_zero_point|output_scale|output_zero_point"
    r"|pre_quant_scale|qweight|qzeros|scales|g_idx|[qkv]_scale|[qkv]_zero_point|kv_scale)$"
)
"""Tensors that belong to a quantized weight rather than to the forward pass."""


@dataclass(frozen=True, slots=True)
class SortedNames:
    """File names sorted into what they are."""

    canonical: Mapping[str, str]
    """canonical name → file name"""
    stale: Mapping[str, str] = field(default_factory=dict)
    qparams: Mapping[str, str] = field(default_factory=dict)
    prefixed: tuple[str, ...] = ()


def canonical_name(name: str) -> str:
    """The canonical spelling of one tensor name (unknown names lose prefixes only)."""
    bare = name.rsplit("draft_model.", 1)[-1]
    stripped = True
    while stripped:
        stripped = False
        for prefix in PREFIXES:
            if bare.startswith(prefix):
                bare, stripped = bare[len(prefix) :], True
    for pattern, replacement in ALIASES:
        bare, count = re.subn(pattern, replacement, bare)
        if count:
            break
    return bare


def sort_names(names: Iterable[str]) -> SortedNames:
    """Sort file names into canonical tensors, quantization companions and leftovers.

    Raises:
        BadCheckpoint: two tensors of the file are the same canonical tensor.
    """
    canonical: dict[str, str] = {}
    qparams: dict[str, str] = {}
    stale: dict[str, str] = {}
    prefixed: list[str] = []
    for name in names:
        if reason := next((why for pattern, why in STALE if re.search(pattern, name)), None):
            stale[name] = reason
            continue
        if name.startswith(PREFIXES) or "draft_model." in name:
            prefixed.append(name)
        bare = canonical_name(name)
        into = qparams if QPARAMS.search(bare) else canonical
        if bare in into:
            raise BadCheckpoint(
                f"tensors {into[bare]} and {name} are both {bare}",
                why="which of the two was trained cannot be told",
                cure="remove one of them",
            )
        into[bare] = name
    _one_norm_for_later_layers(canonical, stale)
    return SortedNames(canonical, stale, qparams, tuple(prefixed))


def _one_norm_for_later_layers(canonical: dict[str, str], stale: dict[str, str]) -> None:
    """Later layers have one norm: `hidden_norm` to SGLang and TensorRT-LLM, `input_layernorm` to vLLM."""
    for name in [n for n in canonical if re.fullmatch(r"layers\.[1-9][0-9]*\.hidden_norm\.weight", n)]:
        source = canonical.pop(name)
        plain = name.replace("hidden_norm", "input_layernorm")
        if plain in canonical:
            stale[source] = _unused("this layer's norm is its input_layernorm", source="vLLM, speculators")
        else:
            canonical[plain] = source


def _unused(why: str, *, source: str) -> str:
    """A reason that cites who does not use the tensor."""
    return f"unused: {why} ({source})"
