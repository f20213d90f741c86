"""Attention in plain torch, in place of SGLang's backends: causal, one request, nothing cached."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def attention(
    layer: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *_: object,
    q_rope: Tensor | None = None,
    k_rope: Tensor | None = None,
    **__: object,
) -> Tensor:
    """`RadixAttention.forward` of srt/layers/radix_attention.py, 0.5.23, with the layer's own heads, scale and window.

    Args:
        q, k, v: [T, N*D], [T, G*D], [T, G*P] in any shape; `q_rope`, `k_rope`: the rotated parts of MLA heads.
    """
    rows = q.shape[0]
    query_TND = q.reshape(rows, layer.tp_q_head_num, -1)
    key_TGD = k.reshape(rows, layer.tp_k_head_num, -1)
    value_TGP = v.reshape(rows, layer.tp_v_head_num, -1)
    if q_rope is not None and k_rope is not None:
        query_TND = torch.cat((query_TND, q_rope.reshape(rows, layer.tp_q_head_num, -1)), dim=-1)
        key_TGD = torch.cat((key_TGD, k_rope.reshape(rows, layer.tp_k_head_num, -1)), dim=-1)
    copies = query_TND.shape[1] // key_TGD.shape[1]
    key_TND, value_TNP = (x.repeat_interleave(copies, dim=1).float() for x in (key_TGD, value_TGP))
    score_NTS = torch.einsum("tnd,snd->nts", query_TND.float(), key_TND) * layer.scaling
    position_T = torch.arange(rows)
    distance_TS = position_T[:, None] - position_T[None, :]
    hidden_TS = distance_TS < 0
    if layer.sliding_window_size and layer.sliding_window_size > 0:
        hidden_TS |= distance_TS > layer.sliding_window_size
    weight_NTS = score_NTS.masked_fill(hidden_TS, -math.inf).softmax(dim=-1)
    return torch.einsum("nts,snp->tnp", weight_NTS, value_TNP).reshape(rows, -1).to(q.dtype)
