"""Everything that a person may say to the doctor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from draftconv import limits
from draftconv.engines import parse_engine
from draftconv.engines.registry import DEFAULT
from draftconv.live.requests import RetryPolicy
from draftconv.options import (
    ACCEPT_DETECTED,
    NUM_SPECULATIVE_TOKENS,
    Place,
    Several,
    aux_convention_of_each,
    layout_of_each,
    option,
    python_only,
)
from draftconv.replay.options import REPLAY_DEVICE, REPLAY_DTYPE
from draftconv.replay.target_tables import semantics

DoctorProgress = Callable[[str, int, int], None]
"""Told the stage (`asking`, `reading`, `replaying`), and how much of it is done and in all: requests, bytes, tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Which server is looked at, and what it is held against."""

    engine: str = option(..., "The engine that runs.", flag="--for", metavar="ENGINE[@VERSION][:HARDWARE]")
    url: str = option(..., "The running server.", metavar="URL")
    target: Place | None = option(
        None,
        "The model that is served: a directory, a Hub id or a known name.  [default: as the trace says]",
        metavar="TARGET",
        parse=str,
    )
    trace: Place | None = option(
        None,
        "What the target did, from `draftconv trace`; without it only what the server tells of itself is judged.",
        metavar="DIR",
    )
    suspect: Place | Sequence[Place] = option(
        (), "Another drafter that it may have loaded; may be repeated.", metavar="DRAFTER"
    )
    num_speculative_tokens: int | None = option(
        None,
        replace(
            NUM_SPECULATIVE_TOKENS,
            former=(),
            help="Drafted tokens per step that it should have.  [default: as many as it has]",
        ),
    )
    limit: int | None = option(None, "Only the first N requests of the trace.", metavar="N", least=1)
    timeout: float = option(
        float(limits.ENGINE_ANSWER.value), "How long the answer to a request may take.", metavar="SECONDS", above=0
    )
    layout: Several = option((), layout_of_each("DRAFTER"))
    aux_convention: Several = option((), aux_convention_of_each("DRAFTER"))
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    dtype: str = option("float32", REPLAY_DTYPE)
    device: str = option("cpu", REPLAY_DEVICE)
    patience: RetryPolicy = field(
        default_factory=RetryPolicy, metadata={"about": "how long a server is waited for that fails or is overloaded"}
    )
    progress: DoctorProgress | None = python_only(
        None, "told the stage (`asking`, `reading`, `replaying`), and how much of it is done and in all"
    )

    @property
    def semantics(self) -> str:
        """Whose rule decides between the drafter's tables and the target's: the engine's, where it is known."""
        name = parse_engine(self.engine).name
        return name if name in semantics() else DEFAULT
