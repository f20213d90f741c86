"""Everything that a person may say of a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
    below=1,
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


TRACE = Option("Replay: what the target did, from `draftconv trace`.", metavar="DIR")
REPLAY_DTYPE = dtype_option("What replay computes in.", tuple(DTYPES))
REPLAY_DEVICE = Option("Where torch runs the drafters.", metavar="DEVICE")
"""What every replay takes."""


SPEED = Option(
    "How long steps take, to tell what drafting brings: a .yaml file of times, the report of a live run with "
    "--also-speed, or a profile of `draftconv recipes` with --target-step.",
    metavar="FILE|REPORT|PROFILE",
)
TARGET_STEP = Option(
    "Of a profile: what one step of the target takes without a drafter (TPOT), in ms, with one request at a time.",
    metavar="MS",
    above=0,
)
"""How long steps take: what `live.step_times` reads."""


DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")
DRAFT_SAMPLE_METHOD = Option(
    "Of a trace of sampled text: draft the most likely token, or draw it at the temperature of the text.",
    choices=DRAFT_SAMPLE_METHODS,
)


def _as_engine(each: str) -> Option:
    """`--as`, where a value without a name is about every drafter of this part."""
    text = (
        f"Round activations as this engine's kernel does: of every {each}, or of the DRAFTER named; `file`: as it "
        "says itself. May be repeated.  [default: the one engine in its draftconv.json, else as it says itself]"
    )
    return Option(text, flag="--as", metavar="[DRAFTER=]ENGINE[:HARDWARE]|file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptOptions:
    """How single drafters are measured on a trace."""

    trace: Place = option(..., TRACE)
    min_al: float | None = option(
        None,
        "Fail unless the whole interval of the accept length lies above this, for every drafter.",
        metavar="X",
        least=1,
    )
    num_speculative_tokens: int = option(3, replace(NUM_SPECULATIVE_TOKENS, former=()))
    speed: Place | None = option(None, SPEED)
    target_step: float | None = option(None, TARGET_STEP)
    semantics: str = option(DEFAULT, _semantics_help(), choices=lambda: tuple(semantics()))
    as_engine: Several = option((), _as_engine("drafter"))
    draft_sample_method: str = option("greedy", DRAFT_SAMPLE_METHOD)
    limit: int | None = option(None, "Only the first N requests of the trace.", metavar="N", least=1)
    dtype: str = option("float32", REPLAY_DTYPE)
    device: str = option("cpu", REPLAY_DEVICE)
    layout: Several = option((), layout_of_each("the first DRAFTER"))
    aux_convention: Several = option((), aux_convention_of_each("the first DRAFTER"))
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    command: tuple[str, ...] = python_only((), "the command, for the report")
    progress: Progress | None = python_only(None, "told the stage, and how much of it is done and in all")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityOptions:
    """How drafters are compared on a trace."""

    trace: Place = option(..., TRACE)
    baseline: Place | None = option(
        None,
        "Replay: compare with what `draftconv accept --report` recorded of the reference; every drafter that is named "
        "is then a candidate.",
        metavar="FILE",
    )
    trace_cand: Place | None = option(
        None,
        "Replay: what another target did on the same prompts; REFERENCE on it is the candidate.",
        metavar="DIR",
    )
    margin: float | None = option(None, MARGIN)
    num_speculative_tokens: int = option(3, NUM_SPECULATIVE_TOKENS)
    semantics: str = option(DEFAULT, _semantics_help(), choices=lambda: tuple(semantics()))
    fake_quant: Several = option(
        (), "Add a candidate: REFERENCE as this recipe would leave it. May be repeated.", metavar="RECIPE"
    )
    calibrate: Place | None = option(
        None, "With --fake-quant: the trace on which GPTQ rounds, of other prompts than --trace.", metavar="DIR"
    )
    as_engine: Several = option((), _as_engine("candidate"))
    draft_sample_method: str = option("greedy", DRAFT_SAMPLE_METHOD)
    attribute: bool = option(False, "Measure what each changed tensor costs on its own.")
    self_test: bool = option(False, "Replay drafters broken on purpose; exit 1 if one is not noticed.")
    limit: int | None = option(None, LIMIT)
    extend: Place | None = option(None, EXTEND)
    dtype: str = option("float32", REPLAY_DTYPE)
    device: str = option("cpu", REPLAY_DEVICE)
    layout: Several = option((), REFERENCE_LAYOUT)
    aux_convention: Several = option((), REFERENCE_AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    command: tuple[str, ...] = python_only((), "the command, for the report")
    progress: Progress | None = python_only(None, "told the stage, and how much of it is done and in all")
    announce: Announce | None = python_only(None, ANNOUNCE)
