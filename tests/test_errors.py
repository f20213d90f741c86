"""What a command ends with, by the kind of its error."""

from __future__ import annotations

from draftconv import errors
from draftconv.errors import DraftconvError

OTHERS = {"CheckFailed": 1, "Unfinished": 3, "Void": 4, "StepsWithoutDraft": 4, "NoDrafts": 4}
"""Errors that are more than bad input, which is 2."""


def test_exit_codes() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DraftconvError)]
    assert {kind.__name__: kind.exit_code for kind in kinds if kind.exit_code != 2} == OTHERS
