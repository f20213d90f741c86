"""What attention remembers: a context and, for drafting, short chains that branch off it.

Step 0 appends rows to the *context*: row i sees context rows <= i. Step k >= 1 advances
one drafted token for each of the last T context rows at once, or for some of them: the chain
that branches off row i sees context rows <= i and its own keys of steps 1...k, which stand for
the positions i+1...i+k. With T = 1 that is a cached decode step; with T = every row it is
the attention pattern of training-time test and of replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftconv.errors import UsageError


@dataclass(frozen=True, slots=True)
class KeysValues:
    """Rotated keys [B, S, G, D] and values [B, S, G, P]."""

    key: Tensor
    value: Tensor

    def appended(self, more: KeysValues) -> KeysValues:
        """These rows followed by `more`."""
        return KeysValues(torch.cat((self.key, more.key), 1), torch.cat((self.value, more.value), 1))

    def room_for(self, rows: int) -> KeysValues:
        """As many keys and values as `rows` of these would have, not yet written."""
        return KeysValues(*(x.new_empty((len(x), rows, *x.shape[2:])) for x in (self.key, self.value)))

    def rows(self, first: int, last: int) -> KeysValues:
        """Rows [first, last), over the same memory."""
        return KeysValues(self.key[:, first:last], self.value[:, first:last])

    def picked(self, column_BT: Tensor) -> KeysValues:
        """Of each request the rows in `column_BT`, int64."""
        request_B1 = torch.arange(len(column_BT), device=column_BT.device)[:, None]
        return KeysValues(self.key[request_B1, column_BT], self.value[request_B1, column_BT])


@dataclass(slots=True)
class LayerCache:
    """What one layer remembers: the context, and the chains' own keys, one entry per step >= 1.

    Attributes:
        room: context rows that there will be at most, where that is known: their memory is then taken once, and no
            block of rows is copied for the next one. 0 where it is not.
    """

    room: int = 0
    context: KeysValues | None = None
    chains: list[KeysValues] = field(default_factory=list)
    _buffer: KeysValues | None = None

    def store(self, new: KeysValues, step: int) -> None:
        """Append `new` to the context (step 0, forgetting all chains) or to the chains."""
        if step == 0:
            self.context = self._extended(new)
            self.chains.clear()
        else:
            self.chains.append(new)

    def _extended(self, new: KeysValues) -> KeysValues:
        """The context with `new` behind it."""
        first = 0 if self.context is None else self.context.key.shape[1]
        last = first + new.key.shape[1]
        if last > self.room or (first == 0 and last == self.room):
            return new if self.context is None else self.context.appended(new)
        if self._buffer is None:
            self._buffer = new.room_for(self.room)
        place = self._buffer.rows(first, last)
        place.key.copy_(new.key)
        place.value.copy_(new.value)
        return self._buffer.rows(0, last)


@dataclass(slots=True)
class Cache:
    """The memory of one batch of equally long requests, for all layers.

    `rows` context rows are held and `step` is the number of the last step taken. `row_BT` are the context rows that
    its chains branch off, the same in every request ([1, T]) or not.
    """

    layers: list[LayerCache]
    rows: int = 0
    step: int = 0
    row_BT: Tensor = field(default_factory=lambda: torch.empty(1, 0, dtype=torch.int64))

    @classmethod
    def empty(cls, layers: int, room: int = 0) -> Cache:
        """A cache for `layers` layers that has seen nothing; `room` as in `LayerCache`."""
        return cls([LayerCache(room) for _ in range(layers)])

    def advance(self, rows: int, step: int, device: torch.device) -> Span:
        """Record that `step` is about to run for `rows` rows.

        Raises:
            UsageError: steps out of order, or more chains than context rows.
        """
        if step not in (0, self.step + 1) or (step > 0 and rows > self.rows):
            raise UsageError(
                f"step {step} for {rows} rows cannot follow step {self.step} on {self.rows} context rows",
                cure="call step 0 with target features first, then steps 1, 2, … for its last rows",
            )
        if step == 0:
            self.rows += rows
        if step == 0 or rows != self.row_BT.shape[1]:
            self.row_BT = torch.arange(self.rows - rows, self.rows, device=device)[None]
        self.step = step
        return Span(self.row_BT, step)

    def pick(self, column_BT: Tensor) -> None:
        """Let the next step go on with some chains of the last one only.

        Args:
            column_BT: int64, their columns in the last step, any number for each request; they may repeat.
        """
        for layer in self.layers:
            layer.chains = [chain.picked(column_BT) for chain in layer.chains]
        self.row_BT = self.row_BT.expand(len(column_BT), -1).gather(1, column_BT)


@dataclass(frozen=True, slots=True)
class Span:
    """Which context rows a call's queries stand on, [1, T] or [B, T], and how many steps beyond them."""

    row_BT: Tensor
    step: int

    @property
    def positions(self) -> Tensor:
        """Rotary positions [1, T] or [B, T]: row i at step k stands at i + k."""
        return self.row_BT + self.step

    def part(self, columns: slice) -> Span:
        """Some of its queries."""
        return Span(self.row_BT[:, columns], self.step)
