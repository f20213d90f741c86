"""How far a long piece of work has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int], None]
"""Called, in the thread that started the work, with the bytes done so far."""


class ByteCounter:
    """Adds up the bytes of single steps and tells the sum to whoever wants to know it."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._done = 0

    def add(self, count: int) -> None:
        """`count` more bytes are done."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done)
