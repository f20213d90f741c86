"""The text of a trace in batches: which rows are roots, what each is fed and what it wants.

Shape suffixes as in `draftconv.reference`, and R for roots: the rows of a batch that count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftconv.errors import UsageError
from draftconv.traces.request import TraceRequest


def roots(request: TraceRequest) -> int:
    """R: verify steps start while fewer than prompt + counted tokens are known; the first knows prompt + 1."""
    return max(0, request.counted - 1)


def columns_of(name: str, wanted: Sequence[int], boundaries: Sequence[int]) -> list[int]:
    """Where the boundaries that an arm reads stand among those of the states.

    Raises:
        UsageError: one is not there.
    """
    missing = [b for b in wanted if b not in boundaries]
    if missing:
        raise UsageError(
            f"{name} reads boundaries {list(wanted)}, the trace holds {list(boundaries)}",
            why="its fc would be fed states that it was not trained on",
            cure=f"make the trace with --boundaries {','.join(map(str, sorted({*boundaries, *wanted})))}",
        )
    return [boundaries.index(b) for b in wanted]


def refuse_clipped(request: TraceRequest, depth: int) -> None:
    """Refuse a request that keeps too few tokens beyond its end for drafts of `depth`.

    Raises:
        UsageError: it does.
    """
    beyond = len(request.tokens_N) - request.prompt - request.counted
    if roots(request) and beyond < depth - 1:
        raise UsageError(
            f"request {request.id} keeps {beyond} tokens beyond its end, drafts of {depth} need {depth - 1}",
            why="its last steps would be clipped, which lowers the accept length",
            cure=f"make the trace with --num-speculative-tokens {depth}, or replay with "
            f"--num-speculative-tokens {beyond + 1}",
        )


def batches(requests: Iterable[TraceRequest], rows: int) -> Iterator[list[TraceRequest]]:
    """Neighbouring requests that are at most `rows` rows together once they are padded alike."""
    batch: list[TraceRequest] = []
    longest = 0
    for request in requests:
        longest = max(longest, context_rows(request))
        if batch and longest * (len(batch) + 1) > rows:
            yield batch
            batch, longest = [], context_rows(request)
        batch.append(request)
    if batch:
        yield batch


def context_rows(request: TraceRequest) -> int:
    """Rows that some verify step reads."""
    return request.prompt - 1 + roots(request)


def blocks(width: int, rootless: int, rows: int) -> Iterator[tuple[int, int]]:
    """Runs of at most `rows` rows, none of them across the place where roots begin: before it, one step is enough."""
    for begin, end in ((0, rootless), (rootless, width)):
        for first in range(begin, end, rows):
            yield first, min(first + rows, end)


@dataclass(frozen=True, slots=True)
class RootBlock:
    """Rows [first, last) of a batch.

    `token_BTK[:, :, k]` is what step k is fed, token t + 1 + k; `row_R` are the roots among the
    block's rows (flat, request by request), `index_R` their places in all roots of the batch.
    """

    token_BTK: Tensor
    wanted_RK: Tensor
    row_R: Tensor
    index_R: Tensor


@dataclass(frozen=True, slots=True)
class Columns:
    """Some rows of a block, side by side for each request: [B, T'], T' those of the request that has most.

    Attributes:
        row_BC: which row of the block, or column of other columns, stands there; 0 behind those of a request.
        place_R: where the rows that were asked for stand in it, flat.
    """

    row_BC: Tensor
    place_R: Tensor

    @classmethod
    def of(cls, row_R: Tensor, batch: int, width: int) -> Columns:
        """Side by side.

        Args:
            row_R: flat rows of [batch, width], ascending, one at least.
        """
        request_R, column_R = row_R // width, row_R % width
        count_B = torch.bincount(request_R, minlength=batch)
        most = int(count_B.max())
        place_R = torch.arange(len(row_R), device=row_R.device) + (
            request_R * most - (count_B.cumsum(0) - count_B)[request_R]
        )
        row_BC = torch.zeros(batch * most, dtype=torch.int64, device=row_R.device)
        row_BC[place_R] = column_R
        return cls(row_BC.view(batch, most), place_R)

    def picked(self, x_BT: Tensor) -> Tensor:
        """Of [B, T] or [B, T, H] what stands in these rows."""
        request_B1 = torch.arange(len(self.row_BC), device=x_BT.device)[:, None]
        return x_BT[request_B1, self.row_BC]


@dataclass(frozen=True, slots=True)
class BatchText:
    """The tokens of a batch, padded on the right; padding is never seen by a root, because attention is causal."""

    token_BN: Tensor
    root_BT: Tensor
    depth: int

    @classmethod
    def of(cls, batch: Sequence[TraceRequest], depth: int, device: torch.device) -> BatchText:
        """The text of some requests, for drafts of `depth`."""
        width = max(context_rows(request) for request in batch)
        token_BN = torch.zeros(len(batch), width + 1 + depth, dtype=torch.int64)
        root_BT = torch.zeros(len(batch), width, dtype=torch.bool)
        for b, request in enumerate(batch):
            known = request.tokens_N[: token_BN.shape[1]]
            token_BN[b, : len(known)] = known
            root_BT[b, request.prompt - 1 : context_rows(request)] = True
        return cls(token_BN.to(device), root_BT.to(device), depth)

    @property
    def width(self) -> int:
        """T: rows of the longest request."""
        return self.root_BT.shape[1]

    def block(self, first: int, last: int) -> RootBlock:
        """Rows [first, last)."""
        ahead_BTK = torch.stack([self.token_BN[:, first + k : last + k] for k in range(1, self.depth + 2)], dim=-1)
        row_R = self.root_BT[:, first:last].flatten().nonzero()[:, 0]
        flat_BT = torch.arange(self.root_BT.numel(), device=row_R.device).view_as(self.root_BT)
        return RootBlock(
            token_BTK=ahead_BTK[..., :-1],
            wanted_RK=ahead_BTK[..., 1:].flatten(0, 1)[row_R],
            row_R=row_R,
            index_R=flat_BT[:, first:last].flatten()[row_R],
        )


def padded_states(
    batch: Sequence[TraceRequest], first: int, last: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """States [B, last - first, A, W] of rows [first, last) of a batch, zeros behind the shorter requests.

    One request at least has all of these rows.
    """
    rows = [request.states_TAW[first : max(first, min(last, context_rows(request)))] for request in batch]
    return pad_sequence(rows, batch_first=True).to(device, dtype)
