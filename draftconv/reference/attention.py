"""Attention over a context and over the chains that branch off it: see `draftconv.reference.cache`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftconv.drafter.facts import Gqa, Mla, Rope
from draftconv.errors import UsageError
from draftconv.reference.cache import KeysValues, LayerCache, Span
from draftconv.reference.layers import RmsNorm
from draftconv.reference.rope import Rotary, softmax_multiplier

SCORES_AT_ONCE = 1 << 24
"""Elements of a score matrix, 64 MB in float32: bounds memory on long texts, changes no result."""


def attend(query_BTND: Tensor, cache: LayerCache, span: Span, *, scale: float, window: int | None) -> Tensor:
    """Softmax attention of the span's queries over their visible keys.

    Args:
        scale: what the products of queries and keys are multiplied by.
        window: a query at position p sees keys at positions > p - window.

    Returns:
        [B, T, N * P] in the values' dtype; the softmax runs in float32 or better.
    """
    if cache.context is None:
        raise UsageError("attention over an empty context", cure="run step 0 first")
    chain_keys = cache.chains if window is None else cache.chains[-window:]
    parts = []
    per_row = query_BTND.shape[0] * query_BTND.shape[2] * cache.context.key.shape[1]
    step = max(1, SCORES_AT_ONCE // per_row)
    for at in range(0, query_BTND.shape[1], step):
        rows = slice(at, at + step)
        query = query_BTND[:, rows] * scale
        chains = [KeysValues(kv.key[:, rows], kv.value[:, rows]) for kv in chain_keys]
        parts.append(_attend_rows(query, cache.context, chains, span.part(rows), window))
    return torch.cat(parts, dim=1)


def _attend_rows(
    query_BTND: Tensor, context: KeysValues, chains: list[KeysValues], span: Span, window: int | None
) -> Tensor:
    rows, groups = context.key.shape[1:3]
    query_BTGRD = torch.unflatten(query_BTND, 2, (groups, -1))
    scores_BGRTS = torch.einsum("btgrd,bsgd->bgrts", query_BTGRD, context.key)
    scores_BGRTS = scores_BGRTS.to(torch.promote_types(scores_BGRTS.dtype, torch.float32))
    scores_BGRTS = scores_BGRTS + _causal_bias(span, rows, window, scores_BGRTS)
    chain_scores = [torch.einsum("btgrd,btgd->bgrt", query_BTGRD, kv.key)[..., None] for kv in chains]
    share = torch.cat((scores_BGRTS, *chain_scores), dim=-1).softmax(dim=-1).to(context.value.dtype)
    out_BTGRP = torch.einsum("bgrts,bsgp->btgrp", share[..., :rows], context.value)
    for j, kv in enumerate(chains):
        out_BTGRP = out_BTGRP + torch.einsum("bgrt,btgp->btgrp", share[..., rows + j], kv.value)
    return out_BTGRP.flatten(2)


def _causal_bias(span: Span, context_rows: int, window: int | None, like: Tensor) -> Tensor:
    """0 where a query of `span` sees a context row, minus infinity elsewhere: [1 or B, 1, 1, T, S]."""
    row_BT1 = span.row_BT[:, :, None]
    row_S = torch.arange(context_rows, device=like.device)
    hidden_BTS = row_S > row_BT1
    if window is not None:
        hidden_BTS = hidden_BTS | (row_S <= row_BT1 + span.step - window)
    return torch.zeros_like(hidden_BTS, dtype=like.dtype).masked_fill(hidden_BTS, float("-inf"))[:, None, None]


class GqaAttention(nn.Module):
    """Llama-style attention with optional biases, query/key norms and sliding window.

    Source: transformers `LlamaAttention` and, for the norms before the rotation, `Qwen3Attention`.
    """

    def __init__(
        self, width: int, hidden: int, shape: Gqa, rope: Rope, *, eps: float, window: int | None = None
    ) -> None:
        super().__init__()
        self.shape, self.window = shape, window
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, hidden, bias=shape.o_bias)
        if shape.qk_norm:
            self.q_norm = RmsNorm(shape.head_dim, eps)
            self.k_norm = RmsNorm(shape.head_dim, eps)
        self.rotary = Rotary.of(rope, shape.head_dim, latent=False)

    def forward(self, x_BTX: Tensor, cache: LayerCache, span: Span) -> Tensor:
        self.remember(x_BTX, cache, span)
        query_BTND = self.q_proj(x_BTX).unflatten(-1, (-1, self.shape.head_dim))
        if self.shape.qk_norm:
            query_BTND = self.q_norm(query_BTND)
        scale = self.shape.head_dim**-0.5
        mixed = attend(self.rotary(query_BTND, span.positions), cache, span, scale=scale, window=self.window)
        out_BTH: Tensor = self.o_proj(mixed)
        return out_BTH

    def remember(self, x_BTX: Tensor, cache: LayerCache, span: Span) -> None:
        """Store the keys and values of rows."""
        key_BTGD = self.k_proj(x_BTX).unflatten(-1, (-1, self.shape.head_dim))
        value_BTGP = self.v_proj(x_BTX).unflatten(-1, (-1, self.shape.head_dim))
        if self.shape.qk_norm:
            key_BTGD = self.k_norm(key_BTGD)
        cache.store(KeysValues(self.rotary(key_BTGD, span.positions), value_BTGP), span.step)


class MlaAttention(nn.Module):
    """DeepSeek multi-head latent attention, computed per head (nothing absorbed).

    Source: transformers `DeepseekV3Attention`; the scale under YaRN as in the engines.
    """

    def __init__(
        self, width: int, hidden: int, shape: Mla, rope: Rope, *, eps: float, window: int | None = None
    ) -> None:
        super().__init__()
        self.shape, self.window = shape, window
        query_width = shape.heads * (shape.nope + shape.rope)
        if shape.q_lora is None:
            self.q_proj = nn.Linear(width, query_width, bias=False)
        else:
            self.q_a_proj = nn.Linear(width, shape.q_lora, bias=False)
            self.q_a_layernorm = RmsNorm(shape.q_lora, eps)
            self.q_b_proj = nn.Linear(shape.q_lora, query_width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, shape.kv_lora + shape.rope, bias=False)
        self.kv_a_layernorm = RmsNorm(shape.kv_lora, eps)
        self.kv_b_proj = nn.Linear(shape.kv_lora, shape.heads * (shape.nope + shape.v), bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.v, hidden, bias=False)
        self.rotary = Rotary.of(rope, shape.rope, latent=True)
        self.scale = (shape.nope + shape.rope) ** -0.5 * softmax_multiplier(rope)

    def forward(self, x_BTX: Tensor, cache: LayerCache, span: Span) -> Tensor:
        self.remember(x_BTX, cache, span)
        mixed = attend(self._query(x_BTX, span.positions), cache, span, scale=self.scale, window=self.window)
        out_BTH: Tensor = self.o_proj(mixed)
        return out_BTH

    def _query(self, x_BTX: Tensor, position_BT: Tensor) -> Tensor:
        shape = self.shape
        flat: Tensor
        if shape.q_lora is None:
            flat = self.q_proj(x_BTX)
        else:
            flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BTX)))
        heads = torch.unflatten(flat, -1, (shape.heads, -1))
        plain, turned = torch.split(heads, [shape.nope, shape.rope], dim=-1)
        return torch.cat((plain, self.rotary(turned, position_BT)), dim=-1)

    def remember(self, x_BTX: Tensor, cache: LayerCache, span: Span) -> None:
        """Store the keys and values of rows."""
        shape = self.shape
        latent, turned = self.kv_a_proj_with_mqa(x_BTX).split((shape.kv_lora, shape.rope), dim=-1)
        heads = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (shape.heads, -1))
        plain, value = heads.split((shape.nope, shape.v), dim=-1)
        shared = self.rotary(turned.unsqueeze(2), span.positions).expand(-1, -1, shape.heads, -1)
        cache.store(KeysValues(torch.cat((plain, shared), dim=-1), value), span.step)


def build_attention(
    width: int, hidden: int, shape: Gqa | Mla, rope: Rope, *, eps: float, window: int | None = None
) -> GqaAttention | MlaAttention:
    """Attention reading rows of `width` elements and returning `hidden` ones."""
    if isinstance(shape, Mla):
        return MlaAttention(width, hidden, shape, rope, eps=eps, window=window)
    return GqaAttention(width, hidden, shape, rope, eps=eps, window=window)
