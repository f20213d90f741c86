"""States of one request, of which some rows at a time are in memory: long texts have gigabytes of them.

Whoever reads states takes slices of rows, and does not see whether these come from memory or from a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.reference.load import TORCH_DTYPES, to_torch

IN_MEMORY = 16 * 1024 * 1024
"""Bytes of a request's states up to which they are held as a whole; a block of more is this large."""


class StateRows(Protocol):
    """States [n, A, W], row by row: a tensor is one."""

    @property
    def shape(self) -> Sequence[int]:
        """Rows, boundaries and width."""

    @property
    def dtype(self) -> torch.dtype:
        """What the target computed in."""

    def __len__(self) -> int:
        """Rows."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some neighbouring rows, in memory."""


@dataclass(frozen=True, slots=True)
class StoredStates:
    """States in a file, read where they are asked for.

    Attributes:
        ref: [n, A, W]. `columns`: those of its boundaries that are handed out, in this order.
    """

    ref: TensorRef
    columns: tuple[int, ...]

    @property
    def shape(self) -> Sequence[int]:
        return (self.ref.shape[0], len(self.columns), self.ref.shape[2])

    @property
    def dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.ref.dtype]

    def __len__(self) -> int:
        return self.ref.shape[0]

    def __getitem__(self, rows: slice, /) -> Tensor:
        first, last, _ = rows.indices(len(self))
        return chosen(to_torch(self.ref.row_range(first, max(first, last))), self.columns)


def open_states(ref: TensorRef, columns: Sequence[int]) -> tuple[StateRows, str]:
    """Some columns of stored states, and the SHA-256 of all of them: every byte has been read once.

    Returns:
        A tensor where they take up to `IN_MEMORY` bytes.
    """
    if ref.nbytes > IN_MEMORY:
        return StoredStates(ref, tuple(columns)), tensor_hash(ref)
    states_TAW = to_torch(ref)
    return chosen(states_TAW, columns), hashlib.sha256(raw(states_TAW)).hexdigest()


def chosen(states_TAW: Tensor, columns: Sequence[int]) -> Tensor:
    """Some columns of [..., A, W]; the states themselves where these are all of them in their order."""
    if list(columns) == list(range(states_TAW.shape[-2])):
        return states_TAW
    return states_TAW[..., list(columns), :]


def state_blocks(states: StateRows) -> Iterator[Tensor]:
    """All rows in their order, in blocks of at most `IN_MEMORY` bytes (one row at least)."""
    _, boundaries, width = states.shape
    step = max(1, IN_MEMORY // (boundaries * width * states.dtype.itemsize))
    for first in range(0, len(states), step):
        yield states[first : first + step]


def raw(states_TAW: Tensor) -> memoryview:
    """The bytes of states, without a copy where they lie in one piece on the CPU."""
    return states_TAW.detach().cpu().contiguous().view(torch.uint8).numpy().data.cast("B")
