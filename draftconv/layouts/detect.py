"""Which layout is this? Clues of each layout in order, or the person's word."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from draftconv.checkpoint import show
from draftconv.drafter.drafter import Detection
from draftconv.errors import NotADrafter
from draftconv.layouts import MARK, layout, layouts
from draftconv.layouts.base import Evidence, Hints, Layout


def detect(evidence: Evidence, hints: Hints) -> tuple[Layout, Detection]:
    """Return the layout and the reasons for it.

    Raises:
        NotADrafter: the checkpoint is something else, named in the message.
        UsageError: `--from` names an unknown layout.
    """
    if hints.layout:
        found = layout(hints.layout)
        return found, Detection(found.id, "given", (f"--from {hints.layout}",))
    _refuse_strangers(evidence)
    if mark := evidence.config.text(MARK):
        found = layout(mark)
        said = f"config.json says draftconv wrote it for {found.id}"
        return found, Detection(found.id, "certain", (said,))
    for candidate in layouts().values():
        if candidate.clues is not None and all(clue.holds(evidence) for clue in candidate.clues):
            reasons = tuple(clue.text for clue in candidate.clues) or ("no producer's fingerprint fits",)
            return candidate, Detection(candidate.id, candidate.confidence, reasons)
    raise NotADrafter("no layout accepts this checkpoint")  # pragma: no cover - generic has no clues


def _refuse_strangers(evidence: Evidence) -> None:
    """Name what a checkpoint is when it is not an EAGLE-3 drafter."""
    for stranger in STRANGERS:
        if stranger.holds(evidence):
            raise NotADrafter(
                f"this is {stranger.what}",
                why=stranger.why,
                cure="draftconv converts EAGLE-3 and EAGLE-3.1 drafters",
            )
    method = evidence.config.text("speculators_model_type")
    if method is not None and method != "eagle3":
        raise NotADrafter(
            f"this is a speculators `{show(method)}` drafter",
            why="draftconv reads speculators_model_type eagle3",
            cure="draftconv converts EAGLE-3 and EAGLE-3.1 drafters",
        )


@dataclass(frozen=True, slots=True)
class Stranger:
    """Something that lies in the same kind of directory and is no EAGLE-3 drafter."""

    holds: Callable[[Evidence], bool]
    what: str
    why: str


def _named(evidence: Evidence, pattern: str) -> bool:
    return any(re.search(pattern, name) for name in (*evidence.names.canonical, *evidence.names.companions))


def _layer_count(evidence: Evidence) -> int:
    return len({m[1] for name in evidence.names.canonical if (m := re.match(r"layers\.([0-9]+)\.", name))})


def _has_fc(evidence: Evidence) -> bool:
    return _named(evidence, r"^fc\.(?!bias$)")


def _is_eagle_1(evidence: Evidence) -> bool:
    """fc is [H, 2H], there is no norm for the state, and attention reads H values instead of 2H."""
    tensors, names = evidence.checkpoint.tensors, evidence.names.canonical
    fc = tensors[names["fc.weight"]].shape if "fc.weight" in names else ()
    if "layers.0.hidden_norm.weight" in names or len(fc) != 2 or fc[1] != 2 * fc[0]:
        return False
    stem = "layers.0.self_attn"
    reads = [f"{stem}.{part}.weight" for part in ("q_proj", "q_a_proj", "qkv_proj", "kv_a_proj_with_mqa")]
    shapes = [tensors[names[name]].shape for name in reads if name in names]
    return bool(shapes) and all(len(shape) == 2 and shape[1] == fc[0] for shape in shapes)


_SERVE_TARGET = "give the drafter's directory, not the target's"
STRANGERS: tuple[Stranger, ...] = (
    Stranger(
        lambda e: (e.config.text("speculators_model_type") or "").lower() == "peagle",
        "a P-EAGLE drafter (speculators_model_type is peagle)",
        "it drafts in parallel and has another forward pass",
    ),
    Stranger(
        lambda e: e.has("mask_hidden"),
        "a P-EAGLE drafter (it has mask_hidden)",
        "it drafts in parallel and has another forward pass",
    ),
    Stranger(
        lambda e: e.architecture.lower().startswith("peagle") or e.config.flag("parallel_drafting") is True,
        "a P-EAGLE drafter (config.json says so)",
        "it drafts in parallel and has another forward pass",
    ),
    Stranger(
        lambda e: _named(e, r"\.lora_[AB]\."),
        "a LoRA adapter (lora_A, lora_B)",
        "merge it into its base first; an EAGLE-3 drafter is a model of its own",
    ),
    Stranger(
        lambda e: _named(e, r"^medusa_head\.|^[0-9]+\.[0-9]+\.(linear\.)?weight$"),
        "a set of Medusa heads",
        "they draft from the last hidden state without attention",
    ),
    Stranger(
        lambda e: _layer_count(e) >= 4 and not _has_fc(e),
        "a whole model (four layers or more, and no fc)",
        _SERVE_TARGET,
    ),
    Stranger(
        lambda e: _named(e, r"(^|\.)(eh_proj|enorm|hnorm)\.(weight|qweight)$"),
        "a multi-token-prediction head (eh_proj, enorm, hnorm)",
        "serve it with method mtp",
    ),
    Stranger(
        lambda e: _named(e, r"\.experts\."),
        "a mixture-of-experts model",
        "an EAGLE-3 drafter's MLP is dense",
    ),
    Stranger(_is_eagle_1, "an EAGLE-1/2 drafter (fc is [H, 2H], no hidden_norm)", "serve it with method eagle"),
    Stranger(
        lambda e: not _has_fc(e) and e.eagle.flag("use_aux_hidden_state") is False,
        "an EAGLE-1-style head (use_aux_hidden_state is false)",
        "it reads the last hidden state only",
    ),
    Stranger(
        lambda e: not _has_fc(e),
        "no EAGLE-3 drafter: it has no fc",
        "fc fuses the target's hidden states; all EAGLE-3 have it",
    ),
)
