"""Everything that a person may say of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftconv.engines.registry import DEFAULT


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """How arms are compared.

    Attributes:
        margin: accepted loss of accept length as a share; 0 asks for equal counts; None takes
            what `parity.verdict.GATES` asks of this kind of candidate.
        depth: K, drafted tokens per step.
        semantics: which engine's rule decides between the drafter's embedding and the target's.
        dtype, device: what replay computes in, and where torch runs it.
        fake_quant: recipes; each adds a candidate: the reference as the recipe would leave it.
        attribute: measure the cost of each tensor that a candidate changed.
        self_test: replay the negative controls too.
        limit: only so many requests of the trace.
        extend: an earlier, inconclusive report; its requests count too.
        layout, aux_convention, accept_detected: how the drafters are to be read; VALUE is about the reference,
            DRAFTER=VALUE about any.
        command: argv for the report.
    """

    margin: float | None = None
    depth: int = 3
    semantics: str = DEFAULT
    dtype: str = "float32"
    device: str = "cpu"
    fake_quant: tuple[str, ...] = ()
    attribute: bool = False
    self_test: bool = False
    limit: int | None = None
    extend: Path | None = None
    layout: str | Sequence[str] = ()
    aux_convention: str | Sequence[str] = ()
    accept_detected: bool = False
    command: tuple[str, ...] = ()
