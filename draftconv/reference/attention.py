"""Attention over a context and, for drafting, over short chains that branch off it.

Step 0 appends rows to the *context*: row i sees context rows <= i. Step k >= 1 advances
one drafted token for each of the last T context rows at once: the chain that branches
off row i sees context rows <= i and its own keys of steps 1...k, which stand for the
positions i+1...i+k. With T = 1 that is a cached decode step; with T = every row it is
the attention pattern of training-time test and of replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from draftconv.drafter.facts import Gqa, Mla, Rope
from draftconv.errors import UsageError
from draftconv.reference.layers import RmsNorm
from draftconv.reference.rope import Rotary, softmax_multiplier


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

    `rows` context rows are held and `step` is the number of the last step taken.
    """

    layers: list[LayerCache]
    rows: int = 0
    step: int = 0

    @classmethod
    def empty(cls, layers: int, room: int = 0) -> Cache:
        """A cache for `layers` layers that has seen nothing; `room` as in `LayerCache`."""
        return cls([LayerCache(room) for _ in range(layers)])

    def advance(self, rows: int, step: int) -> Span:
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
        self.step = step
        return Span(self.rows - rows, rows, step)


@dataclass(frozen=True, slots=True)
class Span:
    """Which context rows a call's queries stand on, and how many steps beyond them."""

    first: int
    rows: int
    step: int

    def positions(self, device: torch.device) -> Tensor:
        """Rotary positions [T]: row i at step k stands at i + k."""
        return torch.arange(self.first, self.first + self.rows, device=device) + self.step


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
    for at in range(0, span.rows, step):
        rows = slice(at, at + step)
        query = query_BTND[:, rows] * scale
        chains = [KeysValues(kv.key[:, rows], kv.value[:, rows]) for kv in chain_keys]
        part = Span(span.first + at, query.shape[1], span.step)
        parts.append(_attend_rows(query, cache.context, chains, part, window))
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
    """0 where a query of `span` sees a context row, minus infinity elsewhere: [T, S]."""
    row_T1 = torch.arange(span.first, span.first + span.rows, device=like.device)[:, None]
    row_1S = torch.arange(context_rows, device=like.device)[None, :]
    hidden_TS = row_1S > row_T1
    if window is not None:
        hidden_TS = hidden_TS | (row_1S <= row_T1 + span.step - window)
    return torch.zeros_like(hidden_TS, dtype=like.dtype).masked_fill(hidden_TS, float("-inf"))


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
        per_head = (-1, self.shape.head_dim)
        query_BTND = self.q_proj(x_BTX).unflatten(-1, per_head)
        key_BTGD = self.k_proj(x_BTX).unflatten(-1, per_head)
        value_BTGP = self.v_proj(x_BTX).unflatten(-1, per_head)
        if self.shape.qk_norm:
            query_BTND, key_BTGD = self.q_norm(query_BTND), self.k_norm(key_BTGD)
        position_T = span.positions(x_BTX.device)
        cache.store(KeysValues(self.rotary(key_BTGD, position_T), value_BTGP), span.step)
        scale = self.shape.head_dim**-0.5
        mixed = attend(self.rotary(query_BTND, position_T), cache, span, scale=scale, window=self.window)
        out_BTH: Tensor = self.o_proj(mixed)
        return out_BTH


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
        position_T = span.positions(x_BTX.device)
        query_BTND = self._query(x_BTX, position_T)
        cache.store(self._keys_values(x_BTX, position_T), span.step)
        mixed = attend(query_BTND, cache, span, scale=self.scale, window=self.window)
        out_BTH: Tensor = self.o_proj(mixed)
        return out_BTH

    def _query(self, x_BTX: Tensor, position_T: Tensor) -> Tensor:
        shape = self.shape
        flat: Tensor
        if shape.q_lora is None:
            flat = self.q_proj(x_BTX)
        else:
            flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BTX)))
        heads = torch.unflatten(flat, -1, (shape.heads, -1))
        plain, turned = torch.split(heads, [shape.nope, shape.rope], dim=-1)
        return torch.cat((plain, self.rotary(turned, position_T)), dim=-1)

    def _keys_values(self, x_BTX: Tensor, position_T: Tensor) -> KeysValues:
        shape = self.shape
        latent, turned = self.kv_a_proj_with_mqa(x_BTX).split((shape.kv_lora, shape.rope), dim=-1)
        heads = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (shape.heads, -1))
        plain, value = heads.split((shape.nope, shape.v), dim=-1)
        shared = self.rotary(turned.unsqueeze(2), position_T).expand(-1, -1, shape.heads, -1)
        return KeysValues(torch.cat((plain, shared), dim=-1), value)


def build_attention(
    width: int, hidden: int, shape: Gqa | Mla, rope: Rope, *, eps: float, window: int | None = None
) -> GqaAttention | MlaAttention:
    """Attention reading rows of `width` elements and returning `hidden` ones."""
    if isinstance(shape, Mla):
        return MlaAttention(width, hidden, shape, rope, eps=eps, window=window)
    return GqaAttention(width, hidden, shape, rope, eps=eps, window=window)
