"""Work on many blocks at once, each block by one thread, so that no sum depends on how many threads there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Workers:
    """Calls a function on every item; the results come in the order of the items.

    Attributes:
        threads: items that are worked on at a time.
    """

    threads: int = 1
    pool: ThreadPoolExecutor | None = None

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        if self.pool is None:
            return [function(item) for item in items]
        return list(self.pool.map(function, items))


@contextmanager
def workers(device: torch.device) -> Iterator[Workers]:
    """As many threads as torch would take; until this is left, torch itself takes one in each of them.

    torch splits a product among its threads where it sees fit, and adds up in another order when there are more of
    them. Blocks of a fixed size that one thread each computes have the same bits on two threads and on sixty. On a
    GPU blocks wait for each other anyway.
    """
    if device.type != "cpu":
        yield Workers()
        return
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count, "draftconv-blocks", torch.set_num_threads, (1,)) as pool:
            yield Workers(count, pool)
    finally:
        torch.set_num_threads(count)
