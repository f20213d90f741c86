"""How far a file stands without a gap, while its ranges are written in any order."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError


class Front:
    """The end of what stands in a file of `size` bytes from its first byte on.

    Writers tell it ranges from any thread, and one reader waits for it. A block in which it is used ends the waiting,
    however the block is left.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._reached = 0
        self._beyond: dict[int, int] = {}  # start → stop of what stands behind a gap
        self._left = False
        self._changed = threading.Condition()

    def wrote(self, start: int, stop: int) -> None:
        """Bytes `start…stop` stand there now; no byte is told twice."""
        if start == stop:
            return
        with self._changed:
            self._beyond[start] = stop
            while self._reached in self._beyond:
                self._reached = self._beyond.pop(self._reached)
            self._changed.notify_all()

    def after(self, done: int) -> int:
        """Where it is, as soon as that is beyond `done`.

        Raises:
            CancelledError: the block was left, and nobody wants to know any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._left or self._reached > done)
            if self._left:
                raise CancelledError
            return self._reached

    def refuse_gap(self) -> None:
        """To be called once everything should stand there: whoever waited for the rest would wait for ever.

        Raises:
            ValueError: something was never written.
        """
        with self._changed:
            if self._reached != self._size:
                raise ValueError(f"{self._size} bytes planned, nothing was written at {self._reached}")

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._left = True
            self._changed.notify_all()
