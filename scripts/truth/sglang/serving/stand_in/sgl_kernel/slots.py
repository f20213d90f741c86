"""Where rows of the KV cache lie: `req_to_token[request, position]` is the slot of a token.

Callers: srt/mem_cache/allocation.py, kernels/ops/speculative/{cache_locs,eagle}.py, kernels/ops/kvcache/cache_move.py,
srt/layers/attention/intel_amx_backend.py (SGLang 0.5.23).
"""

from __future__ import annotations

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    requests: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, slots: Tensor, _width: int
) -> None:
    """Write new slots, request after request, to the positions start…end of each."""
    positions = _positions(requests, start, end)
    req_to_token[positions] = slots[: len(positions[0])].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    requests: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, slots: Tensor, _width: int
) -> None:
    """Read what `assign_req_to_token_pool_cpu` wrote."""
    positions = _positions(requests, start, end)
    slots[: len(positions[0])] = req_to_token[positions].to(slots.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    requests: Tensor, req_to_token: Tensor, lengths: Tensor, slots: Tensor, width: int, topk: int, steps: int
) -> None:
    """Read the slots behind each text where its drafts will lie."""
    assign_extend_cache_locs_cpu(requests, req_to_token, lengths, lengths + topk * steps, slots, width)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, requests: Tensor, lengths: Tensor, topk: int, steps: int, width: int
) -> Tensor:
    """One row of slots per candidate: its text, then its own drafts."""
    rows = torch.zeros((len(requests) * topk, width), dtype=req_to_token.dtype)
    for candidate in range(len(rows)):
        request, branch = divmod(candidate, topk)
        length, its = int(lengths[request]), req_to_token[int(requests[request])]
        first = length + branch * steps
        rows[candidate, :length] = its[:length]
        rows[candidate, length : length + steps] = its[first : first + steps]
    return rows


def fill_accept_out_cache_loc_cpu(accepted: Tensor, slots: Tensor, kept: Tensor) -> None:
    """The slots of accepted drafts, gathered at the front; rejected ones are -1 in `accepted`."""
    chosen = accepted.reshape(-1)
    chosen = chosen[chosen >= 0].long()
    kept[: len(chosen)] = slots[chosen]


def copy_all_layer_kv_cache_cpu(_buffers: Tensor, _strides: Tensor, to: Tensor, source: Tensor) -> None:
    """Rows of a chain lie where they belong; a pool that starts moves its row 0 onto itself once.

    Raises:
        NotImplementedError: accepted rows of a tree would have to move.
    """
    if not torch.equal(to, source):
        raise NotImplementedError("the stand-in of sgl_kernel knows chains only: no rows of the KV cache move")


def _positions(requests: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Every (request, position), in order."""
    spans = list(zip(requests.tolist(), start.tolist(), end.tolist(), strict=True))
    rows = [request for request, first, last in spans for _ in range(first, last)]
    columns = [position for _, first, last in spans for position in range(first, last)]
    return torch.tensor(rows, dtype=torch.long), torch.tensor(columns, dtype=torch.long)
