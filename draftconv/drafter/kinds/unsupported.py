"""What lies in the same kind of directory and is no drafter that draftconv knows: named, so that it can be refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.kinds.eagle3 import has_fc


@dataclass(frozen=True, slots=True)
class UnsupportedKind:
    """Something that lies in the same kind of directory and is no EAGLE-3 drafter."""

    holds: Callable[[Fingerprint], bool]
    what: str
    why: str


def _layer_count(fingerprint: Fingerprint) -> int:
    return len({m[1] for name in fingerprint.names.canonical if (m := re.match(r"layers\.([0-9]+)\.", name))})


def _is_eagle_1(fingerprint: Fingerprint) -> bool:
    """fc is [H, 2H], there is no norm for the state, and attention reads H values instead of 2H."""
    tensors, names = fingerprint.checkpoint.tensors, fingerprint.names.canonical
    fc = tensors[names["fc.weight"]].shape if "fc.weight" in names else ()
    if "layers.0.hidden_norm.weight" in names or len(fc) != 2 or fc[1] != 2 * fc[0]:
        return False
    stem = "layers.0.self_attn"
    reads = [f"{stem}.{part}.weight" for part in ("q_proj", "q_a_proj", "qkv_proj", "kv_a_proj_with_mqa")]
    shapes = [tensors[names[name]].shape for name in reads if name in names]
    return bool(shapes) and all(len(shape) == 2 and shape[1] == fc[0] for shape in shapes)


_SERVE_TARGET = "give the drafter's directory, not the target's"
UNSUPPORTED: tuple[UnsupportedKind, ...] = (
    UnsupportedKind(
        lambda e: (e.config.text("speculators_model_type") or "").lower() == "peagle",
        "a P-EAGLE drafter (speculators_model_type is peagle)",
        "it drafts in parallel and has another forward pass",
    ),
    UnsupportedKind(
        lambda e: e.has("mask_hidden"),
        "a P-EAGLE drafter (it has mask_hidden)",
        "it drafts in parallel and has another forward pass",
    ),
    UnsupportedKind(
        lambda e: e.architecture.lower().startswith("peagle") or e.config.flag("parallel_drafting") is True,
        "a P-EAGLE drafter (config.json says so)",
        "it drafts in parallel and has another forward pass",
    ),
    UnsupportedKind(
        lambda e: e.named(r"\.lora_[AB]\."),
        "a LoRA adapter (lora_A, lora_B)",
        "merge it into its base first; an EAGLE-3 drafter is a model of its own",
    ),
    UnsupportedKind(
        lambda e: e.named(r"^medusa_head\.|^[0-9]+\.[0-9]+\.(linear\.)?weight$"),
        "a set of Medusa heads",
        "they draft from the last hidden state without attention",
    ),
    UnsupportedKind(
        lambda e: _layer_count(e) >= 4 and not has_fc(e),
        "a whole model (four layers or more, and no fc)",
        _SERVE_TARGET,
    ),
    UnsupportedKind(
        lambda e: e.named(r"(^|\.)(eh_proj|enorm|hnorm)\.(weight|qweight)$"),
        "a multi-token-prediction head (eh_proj, enorm, hnorm)",
        "serve it with method mtp",
    ),
    UnsupportedKind(
        lambda e: e.named(r"\.experts\."),
        "a mixture-of-experts model",
        "an EAGLE-3 drafter's MLP is dense",
    ),
    UnsupportedKind(_is_eagle_1, "an EAGLE-1/2 drafter (fc is [H, 2H], no hidden_norm)", "serve it with method eagle"),
    UnsupportedKind(
        lambda e: not has_fc(e) and e.eagle.flag("use_aux_hidden_state") is False,
        "an EAGLE-1-style head (use_aux_hidden_state is false)",
        "it reads the last hidden state only",
    ),
)
