"""What one comparison comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["equal", "declared", "claimed", "different"]
"""`declared` was made again from the source and is the same; `claimed` is what only the record says."""


@dataclass(frozen=True, slots=True)
class ComparedItem:
    """One tensor or fact, compared."""

    what: str
    outcome: Outcome
    how: str
