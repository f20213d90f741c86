"""Time limits on what comes over a network.

A client's own timeout starts anew with every byte, and so does a redirect's or a header's: a server that sends one
byte a second is never late. Here the whole answer has a deadline, whatever the client is busy with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
_END = object()


class Overdue(Exception):
    """An answer that is not there in time; the text says how long was waited."""


def timed(items: Callable[[], Generator[T, None, None]], *, total: float, idle: float) -> Iterator[T]:
    """What a generator yields, as long as it is in time.

    It runs in a thread of its own, which nobody waits for: a call that hangs in the kernel cannot be ended. The
    generator is closed at its next item, when the answer is late or nobody wants more of it.

    Args:
        total: seconds until its end. `idle`: seconds between two items, from the first one on.

    Raises:
        Overdue: it is late. Whatever the generator raises.
    """
    queue: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
    left = threading.Event()

    def work() -> None:
        try:
            with closing(items()) as running:
                for item in running:
                    queue.put((item, None))
                    if left.is_set():
                        return
            queue.put((_END, None))
        except BaseException as error:  # raised again where the items are taken
            queue.put((_END, error))

    threading.Thread(target=work, daemon=True).start()
    deadline, patience = time.monotonic() + total, total
    try:
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            try:
                item, error = queue.get(timeout=min(patience, remaining))
            except Empty:
                waited = f"nothing came for {idle:g} s" if patience < remaining else f"it took more than {total:g} s"
                raise Overdue(waited) from None
            if error is not None:
                raise error
            if item is _END:
                return
            yield item  # type: ignore[misc]
            patience = idle
    finally:
        left.set()
