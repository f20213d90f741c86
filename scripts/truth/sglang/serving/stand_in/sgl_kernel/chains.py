"""Drafts of one request as a chain: what the target is asked, and what of it is accepted.

Callers: kernels/ops/speculative/spec_tree.py and eagle.py (SGLang 0.5.23). Positions of all requests are
numbered through: row b, place i is b * N + i, N tokens per request with the last accepted one in front.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

QLEN_ONLY = 1
"""`TreeMaskMode` of the backend intel_amx: masks show the new tokens to each other."""
DRAFTS = "DRAFTCONV_STAND_IN_DRAFTS"
"""Names the file that gets the drafts of every verify step, one line per request."""


def build_tree_kernel_efficient_cpu(
    _parents: Tensor,
    _selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    next_token: Tensor,
    _next_sibling: Tensor,  # stays -1: nobody has one
    topk: int,
    _depth: int,
    tokens: int,
    mask_mode: int,
) -> None:
    """Every token behind the one before.

    Raises:
        NotImplementedError: a tree, or masks of another kind.
    """
    if topk != 1 or mask_mode != QLEN_ONLY:
        raise NotImplementedError(f"the stand-in of sgl_kernel knows chains only: top-k {topk}, mask {mask_mode}")
    requests, place = len(lengths), torch.arange(tokens)
    mask.view(requests, tokens, tokens)[:] = place[:, None] >= place
    positions.view(requests, tokens)[:] = lengths[:, None] + place
    retrieve_index[:] = torch.arange(requests * tokens).view(requests, tokens)
    next_token[:, :-1] = place[1:]


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accept drafts as long as each is what the target writes there; then the target's own token.

    Args:
        predicts: gets the tokens, at the place behind which each was written. `accept_index`: gets the places
            of the last token and of the accepted drafts, and stays -1 behind them. `accept_token_num`: gets
            how many drafts were accepted.
        candidates: last token and drafts [B, N]. `target_predict`: what the target writes behind each.

    Raises:
        NotImplementedError: a token has a sibling.
    """
    if bool((retrive_next_sibling != -1).any()):
        raise NotImplementedError("the stand-in of sgl_kernel knows chains only: a draft has a sibling")
    _record(candidates[:, 1:])
    wanted = target_predict.reshape(candidates.shape)
    for request in range(len(candidates)):
        place = accepted = 0
        accept_index[request, 0] = retrive_index[request, 0]
        while (following := int(retrive_next_token[request, place])) != -1:
            if candidates[request, following] != wanted[request, place]:
                break
            predicts[retrive_index[request, place]] = wanted[request, place]
            place, accepted = following, accepted + 1
            accept_index[request, accepted] = retrive_index[request, place]
        predicts[retrive_index[request, place]] = wanted[request, place]
        accept_token_num[request] = accepted


def fill_bonus_tokens_cpu(tokens: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """The last token of every request, the target's own."""
    bonus.copy_(tokens.reshape(-1, stride).gather(1, lengths.long()[:, None] - 1)[:, 0])


def rotate_input_ids_cpu(*_: object) -> NoReturn:
    """Imported with the others (kernels/ops/speculative/multi_layer_eagle.py), called for drafters of another kind."""
    raise NotImplementedError("the stand-in of sgl_kernel knows EAGLE-3 only")


def _record(drafts: Tensor) -> None:
    """What no answer of the server tells, for those who want to compare every drafted token."""
    if path := os.environ.get(DRAFTS):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(" ".join(map(str, row)) + "\n" for row in drafts.tolist())
