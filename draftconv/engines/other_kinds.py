"""How an engine serves what draftconv does not convert: said by `inspect`, and by nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.engines.rules import Evidence


@dataclass(frozen=True, slots=True)
class OtherKind:
    """One kind of drafter that an engine serves by another method than EAGLE-3.

    Attributes:
        setting: what to ask the engine for, as it spells it. `source`: file and version.
    """

    setting: str
    source: str
    evidence: Evidence = "read"
