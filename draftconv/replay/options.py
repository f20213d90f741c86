"""Everything that a person may say of a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from draftconv.drafter.describe import join_words
from draftconv.drafter.tensors import EMBEDDING
from draftconv.engines import ENGINES
from draftconv.engines.registry import DEFAULT
from draftconv.options import (
    ACCEPT_DETECTED,
    NUM_SPECULATIVE_TOKENS,
    Option,
    Place,
    Several,
    aux_convention_of_each,
    dtype_option,
    layout_of_each,
    option,
    python_only,
)
from draftconv.replay.target_tables import semantics
from draftconv.traces.trace import DTYPES

Stage = Literal["reading", "replaying"]
Progress = Callable[[Stage, int, int], None]
"""Told the stage, and how much of it is done and in all: bytes of drafters, then tokens of the trace."""

Announce = Callable[[str], None]
"""Told, in words, what will be done."""
ANNOUNCE = "told which sample `extend` adds to, before anything is measured"

MARGIN = Option(
    "Loss of accept length that is allowed, 0.02 for 2 %; 0 asks for equal counts.  "
    "[default: 0, live 0.005; 0.01 for 8-bit weights, 0.02 for 4-bit ones]",
    metavar="SHARE",
    least=0,
    most=1,
)
LIMIT = Option("Only the first N requests of the trace; live: the first N prompts.", metavar="N", least=1)
EXTEND = Option("Add these requests to an inconclusive report; allowed once.", metavar="REPORT")
REFERENCE_LAYOUT = layout_of_each("REFERENCE")
REFERENCE_AUX_CONVENTION = aux_convention_of_each("REFERENCE")
"""What a replay and a live run share."""


def _semantics_help() -> str:
    takers = [ENGINES[name].title for name, tables in semantics().items() if EMBEDDING in tables]
    question = "Whose rule decides between the drafter's embedding and the target's"
    return f"{question}: {join_words(takers, 'and')} take the target's."


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityOptions:
    """How drafters are compared on a trace."""

    trace: Place = option(..., "Replay: what the target did, from `draftconv trace`.", metavar="DIR")
    margin: float | None = option(None, MARGIN)
    num_speculative_tokens: int = option(3, NUM_SPECULATIVE_TOKENS)
    semantics: str = option(DEFAULT, _semantics_help(), choices=lambda: tuple(semantics()))
    fake_quant: Several = option(
        (), "Add a candidate: REFERENCE as this recipe would leave it. May be repeated.", metavar="RECIPE"
    )
    as_engine: Several = option(
        (),
        "Round activations as this engine's kernel does: of every candidate, or of the DRAFTER named; `file`: as it "
        "says itself. May be repeated.  [default: the one engine in its draftconv.json, else as it says itself]",
        flag="--as",
        metavar="[DRAFTER=]ENGINE[:HARDWARE]|file",
    )
    attribute: bool = option(False, "Measure what each changed tensor costs on its own.")
    self_test: bool = option(False, "Replay drafters broken on purpose; exit 1 if one is not noticed.")
    limit: int | None = option(None, LIMIT)
    extend: Place | None = option(None, EXTEND)
    dtype: str = option("float32", dtype_option("What replay computes in.", tuple(DTYPES)))
    device: str = option("cpu", "Where torch runs the drafters.", metavar="DEVICE")
    layout: Several = option((), REFERENCE_LAYOUT)
    aux_convention: Several = option((), REFERENCE_AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    command: tuple[str, ...] = python_only((), "the command, for the report")
    progress: Progress | None = python_only(None, "told the stage, and how much of it is done and in all")
    announce: Announce | None = python_only(None, ANNOUNCE)
