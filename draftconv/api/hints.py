"""What a person says about a checkpoint, checked."""

from __future__ import annotations

from draftconv.drafter.targets import Target
from draftconv.errors import UsageError
from draftconv.layouts.base import Hints


def hints(source: str | None, convention: str | None, target: Target | None) -> Hints:
    """Check and bundle what a person says about a checkpoint."""
    match convention:
        case "before" | "after" | None:
            return Hints(source, convention, target)
        case _:
            raise UsageError(f"--aux-convention {convention}: unknown", cure="write before or after")
