"""Which layout is this? Clues of each layout in order, or the person's word."""

from __future__ import annotations

from draftconv.checkpoint import show
from draftconv.drafter.describe import join_words
from draftconv.drafter.drafter import Detection
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.kinds import KINDS
from draftconv.drafter.kinds.unsupported import unsupported_kind
from draftconv.errors import NotADrafter, UsageError
from draftconv.layouts import MARK, layout, layouts
from draftconv.layouts.base import Layout, ReadOptions


def detect(fingerprint: Fingerprint, options: ReadOptions) -> tuple[Layout, Detection]:
    """Return the layout and the reasons for it.

    Raises:
        NotADrafter: the checkpoint is something else, named in the message, whatever `--from` calls it.
        UsageError: `--from` names an unknown layout.
    """
    _refuse_strangers(fingerprint)  # --from names a spelling, not a network
    if options.layout:
        named = layout(options.layout)
        return named, Detection(named.id, "given", (f"--from {options.layout}",))
    if mark := fingerprint.config.text(MARK):
        try:
            named = layout(mark)
        except UsageError as error:
            raise UsageError(
                f"config.json says that draftconv wrote it for {show(mark)}, a layout that is not known here",
                why=error.why,
                cure="install the package that brings it, or say how to read it with --from",
            ) from error
        reason = f"config.json says draftconv wrote it for {named.id}"
        return named, Detection(named.id, "certain", (reason,))
    for candidate in layouts().values():
        if candidate.clues is not None and all(clue.holds(fingerprint) for clue in candidate.clues):
            reasons = tuple(clue.text for clue in candidate.clues) or ("no producer's fingerprint fits",)
            return candidate, Detection(candidate.id, candidate.confidence, reasons)
    raise NotADrafter("no layout accepts this checkpoint")  # pragma: no cover - generic has no clues


def _refuse_strangers(fingerprint: Fingerprint) -> None:
    """Name what a checkpoint is when it is not an EAGLE-3 drafter."""
    cure = f"draftconv converts {join_words([kind.title for kind in reversed(KINDS)], 'and')} drafters"
    if stranger := unsupported_kind(fingerprint):
        raise NotADrafter(f"this is {stranger.what}", why=stranger.why, cure=cure)
    lacking = [[mark for mark in kind.marks if not mark.holds(fingerprint)] for kind in KINDS]
    if all(lacking):
        first = lacking[-1][0]
        raise NotADrafter(f"this is no {KINDS[-1].title} drafter: {first.lacking}", why=first.why, cure=cure)
    method = fingerprint.config.text("speculators_model_type")
    if method is not None and method != "eagle3":
        raise NotADrafter(
            f"this is a speculators `{show(method)}` drafter",
            why="draftconv reads speculators_model_type eagle3",
            cure=cure,
        )
