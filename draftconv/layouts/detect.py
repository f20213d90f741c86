"""Which layout is this? Clues of each layout in order, or the person's word."""

from __future__ import annotations

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
        return layout(mark), Detection(mark, "certain", (f"config.json says draftconv wrote it for {mark}",))
    for candidate in layouts().values():
        if candidate.clues is not None and all(clue.holds(evidence) for clue in candidate.clues):
            reasons = tuple(clue.text for clue in candidate.clues) or ("no producer's fingerprint fits",)
            return candidate, Detection(candidate.id, candidate.confidence, reasons)
    raise NotADrafter("no layout accepts this checkpoint")  # pragma: no cover - generic has no clues


def _refuse_strangers(evidence: Evidence) -> None:
    """Name what a checkpoint is when it is not an EAGLE-3 drafter (producers' forms, in their order)."""
    names = evidence.names.canonical
    config = evidence.config
    method = config.text("speculators_model_type")
    if method is not None and method != "eagle3":
        _refuse(f"a speculators `{method}` drafter", "draftconv reads speculators_model_type eagle3")
    if "mask_hidden" in names:
        _refuse(
            "a P-EAGLE drafter (it has mask_hidden)", "it drafts in parallel and has another forward pass"
        )
    if any(name.endswith(("eh_proj.weight", ".enorm.weight", ".hnorm.weight")) for name in names):
        _refuse("a multi-token-prediction head (eh_proj, enorm, hnorm)", "serve it with method mtp")
    if any(".experts." in name for name in names):
        _refuse("a mixture-of-experts model", "an EAGLE-3 drafter's MLP is dense")
    deepest = max((int(name.split(".")[1]) for name in names if _is_layer(name)), default=-1)
    if "fc.weight" not in names:
        if deepest >= 3:
            _refuse(
                f"a whole model ({deepest + 1} layers and no fc)",
                "give the drafter's directory, not the target's",
            )
        if evidence.eagle.flag("use_aux_hidden_state") is False:
            _refuse(
                "an EAGLE-1-style head (use_aux_hidden_state is false)", "it reads the last hidden state only"
            )
        _refuse(
            "no EAGLE-3 drafter: it has no fc.weight",
            "fc fuses the target's hidden states; all EAGLE-3 have it",
        )
    if "layers.0.hidden_norm.weight" not in names and "layers.0.self_attn.q_proj.weight" in names:
        fc, q = (
            evidence.checkpoint.tensors[names[n]].shape
            for n in ("fc.weight", "layers.0.self_attn.q_proj.weight")
        )
        if len(fc) == len(q) == 2 and fc[1] == 2 * fc[0] and q[1] == fc[0]:
            _refuse(
                "an EAGLE-1/2 drafter (fc is [H, 2H] and there is no hidden_norm)",
                "serve it with method eagle",
            )


def _refuse(what: str, why: str) -> None:
    raise NotADrafter(f"this is {what}", why=why, cure="draftconv converts EAGLE-3 and EAGLE-3.1 drafters")


def _is_layer(name: str) -> bool:
    return name.startswith("layers.") and name.split(".")[1].isdigit()
