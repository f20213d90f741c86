"""States on their way from the target into a trace, off the machine's memory while their request goes on."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from tempfile import SpooledTemporaryFile

import torch
from torch import Tensor

from draftconv.traces.states import IN_MEMORY, raw
from draftconv.traces.writer import write_failed


def spool_size(longest: int, requests: int) -> int:
    """Bytes of files that so many requests take at most while they are captured, the longest with `longest` bytes."""
    return requests * longest if longest > IN_MEMORY else 0


class SpooledStates:
    """The states of one request, appended as the target gives them; see `states.StateRows`.

    More than `IN_MEMORY` bytes lie in a file without a name, which is gone with the process.
    """

    def __init__(self, directory: Path, shape: Sequence[int], dtype: torch.dtype) -> None:
        """No rows yet, of `shape` [A, W] each; `directory` is the trace's, which has room for them."""
        self.directory, self.dtype = directory, dtype
        self._row, self._rows = tuple(shape), 0
        self._file = SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(directory))  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    @property
    def shape(self) -> Sequence[int]:
        return (self._rows, *self._row)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: slice, /) -> Tensor:
        first, last, _ = rows.indices(self._rows)
        count = max(0, last - first)
        found = torch.empty((count, *self._row), dtype=self.dtype)
        if count:
            self._file.seek(first * self._row_bytes)
            self._file.readinto(raw(found))
        return found

    def append(self, states_TAW: Tensor) -> None:
        """Add rows behind those that are there.

        Raises:
            WriteError: the file system refuses.
        """
        try:
            self._file.seek(self._rows * self._row_bytes)
            self._file.write(raw(states_TAW))
            self._file.flush()  # a full disk is told here, and not where rows are read
        except OSError as error:
            raise write_failed(error, self.directory) from error
        self._rows += len(states_TAW)

    def cut(self, rows: int) -> None:
        """Forget all rows from `rows` on."""
        self._rows = min(rows, self._rows)

    @property
    def _row_bytes(self) -> int:
        return self._row[0] * self._row[1] * self.dtype.itemsize


class BatchSpool:
    """The states of a batch that is padded on the left, without the rows that pad it.

    Attributes:
        requests: the states of each, once something was appended.
    """

    def __init__(self, directory: Path, padding: Sequence[int]) -> None:
        """`padding`: rows before each request's own."""
        self.requests: list[SpooledStates] = []
        self._directory, self._padding = directory, list(padding)

    def append(self, states_BTAW: Tensor) -> None:
        """Add what a forward pass gave.

        Raises:
            WriteError: the file system refuses.
        """
        if not self.requests:
            shape, dtype = states_BTAW.shape[2:], states_BTAW.dtype
            self.requests = [SpooledStates(self._directory, shape, dtype) for _ in self._padding]
        for i, request in enumerate(self.requests):
            skipped = min(self._padding[i], states_BTAW.shape[1])
            self._padding[i] -= skipped
            if skipped < states_BTAW.shape[1]:
                request.append(states_BTAW[i, skipped:])
