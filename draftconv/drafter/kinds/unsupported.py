"""What lies in the same kind of directory and is no drafter that draftconv knows: named, so that it can be refused.

Sources: SpecForge 0.2.0 `modeling/draft/{dflash,domino,dspark}.py`, speculators 0.9.0 `models/{dflash,dflash2,dspark,
xpress,mtp,peagle}`, vLLM 0.32.0 `model_executor/models/{registry,qwen3_next_mtp,mimo_mtp}.py`; read, not run.
What serves a kind is said by engines (`Engine.other_kinds`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from draftconv.checkpoint import FLOATS
from draftconv.drafter.config import Config
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.kinds.eagle3 import has_fc


@dataclass(frozen=True, slots=True)
class UnsupportedKind:
    """Something that lies in the same kind of directory and is no EAGLE-3 drafter.

    Attributes:
        name: what engines call it in their tables; "" for what drafts nothing.
    """

    holds: Callable[[Fingerprint], bool]
    what: str
    why: str
    name: str = ""


def unsupported_kind(fingerprint: Fingerprint) -> UnsupportedKind | None:
    """What this is instead of an EAGLE-3 drafter; None where nothing says so."""
    return next((kind for kind in UNSUPPORTED if kind.holds(fingerprint)), None)


# ── block diffusion: DFlash and its descendants ────────────────────────────────────


def _called(*names: str) -> Callable[[Fingerprint], bool]:
    """True when config.json calls it so: its method, its class, or its head, whatever the case."""

    def holds(fingerprint: Fingerprint) -> bool:
        config = fingerprint.config
        head = _dflash_config(fingerprint).raw("projector_type")
        words = (config.raw("speculators_model_type"), config.raw("model_type"), head, fingerprint.architecture)
        return any(name in word.lower() for word in words if isinstance(word, str) for name in names)

    return holds


def _dflash_config(fingerprint: Fingerprint) -> Config:
    """SpecForge's and z-lab's section; empty when it is absent or something else."""
    raw = fingerprint.config.raw("dflash_config")
    return Config(raw if isinstance(raw, dict) else {}, "dflash_config")


def _reads_one_state(fingerprint: Fingerprint) -> bool:
    """fc and its norm stand before all layers, whose attention reads H values: EAGLE-3's first one reads 2H."""
    tensors, names = fingerprint.checkpoint.tensors, fingerprint.names.canonical
    norm, fc = names.get("layers.0.hidden_norm.weight", ""), names.get("fc.weight", "")
    query = names.get("layers.0.self_attn.q_proj.weight", "")
    if not (norm and fc and query) or "layer" in norm:
        return False
    if not {tensors[fc].dtype, tensors[query].dtype} <= FLOATS:
        return False  # packed weights have other shapes
    return len(tensors[fc].shape) == 2 and tensors[fc].shape[:1] == tensors[query].shape[1:]


def _is_dflash(fingerprint: Fingerprint) -> bool:
    return bool(_dflash_config(fingerprint).data) or _called("dflash")(fingerprint) or _reads_one_state(fingerprint)


# ── others ─────────────────────────────────────────────────────────────────────────


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


_BLOCK = "it drafts a block of masked tokens at once, each of its layers reads the target's states"
_PARALLEL = "it drafts in parallel and has another forward pass"
_SERVE_TARGET = "give the drafter's directory, not the target's"
UNSUPPORTED: tuple[UnsupportedKind, ...] = (
    UnsupportedKind(
        lambda e: _called("dspark")(e) or e.named(r"^(markov_head|confidence_head)\."),
        "a DSpark drafter (DFlash with a Markov head)",
        f"{_BLOCK}, and a head makes a token depend on the one before",
        "dspark",
    ),
    UnsupportedKind(
        lambda e: _called("domino")(e) or e.named(r"^prefix_gru\."),
        "a Domino drafter (DFlash with a recurrent head)",
        f"{_BLOCK}, and a GRU corrects its logits",
        "domino",
    ),
    UnsupportedKind(
        lambda e: _called("xpress")(e) or e.named(r"^refiner_head\."),
        "an XPress drafter (DFlash with a refining head)",
        f"{_BLOCK}, and a head refines them",
        "xpress",
    ),
    UnsupportedKind(
        lambda e: _called("dflash2")(e) or e.named(r"^candidate_selector\.|\.(attention|mlp)_conv\."),
        "a DFlash2 drafter (block diffusion with convolutions and a selector)",
        _BLOCK,
        "dflash2",
    ),
    UnsupportedKind(_is_dflash, "a DFlash drafter (block diffusion)", _BLOCK, "dflash"),
    UnsupportedKind(
        lambda e: (e.config.text("speculators_model_type") or "").lower() == "peagle",
        "a P-EAGLE drafter (speculators_model_type is peagle)",
        _PARALLEL,
        "p-eagle",
    ),
    UnsupportedKind(lambda e: e.has("mask_hidden"), "a P-EAGLE drafter (it has mask_hidden)", _PARALLEL, "p-eagle"),
    UnsupportedKind(
        lambda e: e.architecture.lower().startswith("peagle") or e.config.flag("parallel_drafting") is True,
        "a P-EAGLE drafter (config.json says so)",
        _PARALLEL,
        "p-eagle",
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
        "medusa",
    ),
    UnsupportedKind(
        lambda e: e.named(r"^hydra_(head|mlp|lm_head)\."),
        "a set of Hydra heads",
        "they draft from the last hidden state and the tokens before, without EAGLE-3's layer",
        "hydra",
    ),
    UnsupportedKind(
        lambda e: e.config.raw("model_type") == "mlp_speculator",
        "an MLP speculator (model_type is mlp_speculator)",
        "it drafts from the last hidden state without attention",
        "mlp-speculator",
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
        "mtp",
    ),
    UnsupportedKind(
        lambda e: e.named(r"(^|\.)pre_fc_norm_(hidden|embedding)\.|^mtp(_layers)?\.|^mtp_block\."),
        "a multi-token-prediction head (mtp.*, pre_fc_norm_hidden)",
        "serve it with method mtp",
        "mtp",
    ),
    UnsupportedKind(
        lambda e: e.named(r"\.experts\."),
        "a mixture-of-experts model",
        "an EAGLE-3 drafter's MLP is dense",
    ),
    UnsupportedKind(
        _is_eagle_1,
        "an EAGLE-1/2 drafter (fc is [H, 2H], no hidden_norm)",
        "serve it with method eagle",
        "eagle",
    ),
    UnsupportedKind(
        lambda e: not has_fc(e) and e.eagle.flag("use_aux_hidden_state") is False,
        "an EAGLE-1-style head (use_aux_hidden_state is false)",
        "it reads the last hidden state only",
        "eagle",
    ),
)


# ── in words ───────────────────────────────────────────────────────────────────────

_WORDS = (
    ("layers", ("num_hidden_layers",)),
    ("block", ("block_size",)),
    ("mask token", ("mask_token_id",)),
    ("captured, as written", ("target_layer_ids", "aux_hidden_state_layer_ids")),
    ("Markov rank", ("markov_rank",)),
)
"""Line of the card → keys of config.json that it is read from."""


def card_lines(fingerprint: Fingerprint) -> Iterator[tuple[str, str]]:
    """What config.json says of it, as it stands there: nothing of it is translated."""
    config = fingerprint.config.data
    places = [config, *(config.get(key) for key in ("dflash_config", "transformer_layer_config"))]
    for line, keys in _WORDS:
        found = [p[key] for p in places if isinstance(p, dict) for key in keys if _is_plain(p.get(key))]
        if found:
            yield line, str(found[0])


def _is_plain(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, list) and all(isinstance(item, int) for item in value))
