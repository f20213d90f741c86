"""Attention over the slots of a request, in float32, registered where the backend looks it up.

Caller: srt/layers/attention/intel_amx_backend.py (SGLang 0.5.23). Shapes: queries [T, N, D], keys [S, G, D],
values [S, G, P]; N heads share G heads of keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
EXTEND = (
    "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, Tensor keys, Tensor values,"
    " float k_scale, float v_scale, Tensor req_to_token, Tensor requests, Tensor lengths, Tensor new, Tensor first,"
    " int longest, float scale, float logit_cap, bool cross, int window, Tensor? encoder_lens, Tensor? sinks,"
    " Tensor? tree_mask, bool causal) -> ()"
)
DECODE = (
    "decode_attention_cpu(Tensor query, Tensor(a!) keys, Tensor(b!) values, float k_scale, float v_scale,"
    " Tensor(c!) output, Tensor? key, Tensor? value, Tensor slots, Tensor logits, Tensor req_to_token,"
    " Tensor requests, Tensor lengths, float scale, float logit_cap, bool cross, int window, Tensor? encoder_lens,"
    " Tensor? sinks) -> ()"
)


def register() -> None:
    """Make both known as `torch.ops.sgl_kernel.…`."""
    for schema, kernel in ((EXTEND, extend_attention), (DECODE, decode_attention)):
        LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        LIBRARY.impl(schema.partition("(")[0], kernel, "CPU")  # type: ignore[no-untyped-call]


def extend_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    output: Tensor,
    keys: Tensor,
    values: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    requests: Tensor,
    lengths: Tensor,
    new: Tensor,
    first: Tensor,
    _longest: int,
    scale: float,
    logit_cap: float,
    cross: bool,
    window: int,
    _encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    causal: bool,
) -> None:
    """Several new tokens per request; their keys and values are in the cache already.

    MLA written out as heads brings its own, for the cache holds latents; then every row has to be new.
    """
    _refuse(k_scale, v_scale, logit_cap, cross, sinks, tree_mask is not None or not causal)
    for request, length, count, start in zip(*(t.tolist() for t in (requests, lengths, new, first)), strict=True):
        rows = slice(start, start + count)
        if query.shape[-1] == keys.shape[-1]:
            slots = req_to_token[request, :length].long()
            k, v = keys[slots], values[slots]
        elif length == count and key is not None and value is not None:
            k, v = key[rows], value[rows]
        else:
            raise NotImplementedError("the stand-in of sgl_kernel has no MLA written out as heads behind a prefix")
        output[rows] = attend(query[rows], k, v, scale, length - count, window).to(output.dtype)


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    slots: Tensor,
    _logits: Tensor,
    req_to_token: Tensor,
    requests: Tensor,
    lengths: Tensor,
    scale: float,
    logit_cap: float,
    cross: bool,
    window: int,
    _encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One new token per request; its key and value are written first.

    Values of MLA are the front of its keys, one buffer, so they are written with them.
    """
    _refuse(k_scale, v_scale, logit_cap, cross, sinks, False)
    if key is not None:
        keys[slots] = key.reshape(len(slots), *keys.shape[1:]).to(keys.dtype)
    if value is not None and values.data_ptr() != keys.data_ptr():
        values[slots] = value.reshape(len(slots), *values.shape[1:]).to(values.dtype)
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        where = req_to_token[request, :length].long()
        one = slice(row, row + 1)
        output[one] = attend(query[one], keys[where], values[where], scale, length - 1, window).to(output.dtype)


def attend(query: Tensor, keys: Tensor, values: Tensor, scale: float, before: int, window: int) -> Tensor:
    """Attention of T queries, the first of which stands behind `before` keys; a window of 0 is none."""
    heads = query.shape[1] // keys.shape[1]
    key_SND = keys.float().repeat_interleave(heads, dim=1)
    value_SNP = values.float().repeat_interleave(heads, dim=1)
    score_NTS = torch.einsum("tnd,snd->nts", query.float(), key_SND) * scale
    behind_TS = torch.arange(before, before + len(query))[:, None] - torch.arange(len(keys))
    hidden_TS = behind_TS < 0
    if window > 0:
        hidden_TS |= behind_TS >= window
    weight_NTS = score_NTS.masked_fill(hidden_TS, -torch.inf).softmax(-1)
    return torch.einsum("nts,snp->tnp", weight_NTS, value_SNP)


def _refuse(k_scale: float, v_scale: float, cap: float, cross: bool, sinks: Tensor | None, masked: bool) -> None:
    """Say what was not written, rather than leave it out.

    Raises:
        NotImplementedError: the call needs it.
    """
    asked = {
        "scales of the KV cache": (k_scale, v_scale) != (1.0, 1.0),
        "a cap of the logits": cap > 0,
        "cross attention": cross,
        "sinks": sinks is not None,
        "masks of trees": masked,
    }
    if found := [name for name, needed in asked.items() if needed]:
        raise NotImplementedError(f"the stand-in of sgl_kernel has no {', no '.join(found)}")
