"""Everything that a person may say of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from draftconv.conversion.options import QuantizeOptions
from draftconv.conversion.pruning.options import KEEP, TRUST_REMOTE_CODE, PruneOptions
from draftconv.options import (
    ACCEPT_DETECTED,
    AUX_CONVENTION,
    LAYOUT,
    NUM_SPECULATIVE_TOKENS,
    OVERWRITE,
    TARGET,
    TARGET_LAYERS,
    TENSOR_PARALLEL_SIZE,
    Place,
    Several,
    option,
    python_only,
)
from draftconv.replay.options import REPLAY_DEVICE, REPLAY_DTYPE, SPEED, TARGET_STEP
from draftconv.report.certification import ALPHA

Stage = Literal["counting", "replaying", "choices", "combinations", "unseen half"]
Told = Callable[[str, int, int], None]
"""Told the stage, and how much of it is done and in all: bytes of text, tokens of the trace, then drafters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimOptions:
    """Whom the drafter is for, what it may lose, and what it is measured on."""

    engine: str = option(
        ...,
        "Who will serve it; the machine decides what may be small.",
        flag="--for",
        metavar="ENGINE[@VERSION]:HARDWARE",
    )
    trace: Place = option(
        ..., "What the target did, from `draftconv trace`: one half is searched on, the other certifies.", metavar="DIR"
    )
    max_loss: float = option(
        ..., "Share of accept length that may be lost, 0.01 for 1 %.", metavar="SHARE", above=0, below=1
    )
    counts: Several = option(
        (),
        "Try heads of fewer rows too: what the target writes, to choose them by, as `draftconv prune --counts` takes "
        "it. May be repeated.",
        metavar="[DOMAIN=WEIGHT:]FILE",
    )
    keep: Several = option((), KEEP)
    candidates: int = option(
        4,
        "Most drafters that are judged on the unseen half: the smallest, and the one that lost least. The more, the "
        "harder to pass.",
        metavar="N",
        least=1,
    )
    alpha: float = option(
        ALPHA,
        "How often a search may certify a drafter that loses more than was allowed.",
        metavar="SHARE",
        above=0,
        most=0.5,
    )
    num_speculative_tokens: int = option(3, replace(NUM_SPECULATIVE_TOKENS, former=()))
    speed: Place | None = option(None, SPEED)
    target_step: float | None = option(None, TARGET_STEP)
    target: Place | None = option(None, TARGET)
    target_layers: int | None = option(None, TARGET_LAYERS)
    tensor_parallel_size: int = option(1, replace(TENSOR_PARALLEL_SIZE, former=()))
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    dtype: str = option("float32", REPLAY_DTYPE)
    device: str = option("cpu", REPLAY_DEVICE)
    card: bool = option(True, "Write no README.md.", flag="--no-card")
    layout: str | None = option(None, LAYOUT)
    aux_convention: str | None = option(None, AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    overwrite: bool = option(False, OVERWRITE)
    command: tuple[str, ...] = python_only((), "the command, for the report")
    progress: Told | None = python_only(None, "told the stage, and how much of it is done and in all")

    @property
    def quantize(self) -> QuantizeOptions:
        """How a drafter is quantized that the search finds."""
        return QuantizeOptions(
            recipe="slim",
            engines=(self.engine,),
            tensor_parallel_size=self.tensor_parallel_size,
            calibrate=self.trace,
            calibrate_on="half",
            target=self.target,
            target_layers=self.target_layers,
            card=self.card,
            layout=self.layout,
            aux_convention=self.aux_convention,
            accept_detected=self.accept_detected,
            overwrite=self.overwrite,
        )

    @property
    def quantize_pruned(self) -> QuantizeOptions:
        """How the pruned form of it is, which draftconv wrote: what was said of reading the source is no longer so."""
        return replace(self.quantize, layout=None, aux_convention=None)

    def prune(self, rows: int) -> PruneOptions:
        """How a head of so many rows is chosen."""
        return PruneOptions(
            vocab=rows,
            counts=self.counts,
            trace=self.trace,
            target=self.target,
            target_layers=self.target_layers,
            keep=self.keep,
            num_speculative_tokens=self.num_speculative_tokens,
            tensor_parallel_size=self.tensor_parallel_size,
            trust_remote_code=self.trust_remote_code,
            dtype=self.dtype,
            device=self.device,
            layout=self.layout,
            aux_convention=self.aux_convention,
            accept_detected=self.accept_detected,
            progress=self.progress,
        )
