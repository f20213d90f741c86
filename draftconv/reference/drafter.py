"""The drafter's forward pass, exactly as vLLM, SGLang and TensorRT-LLM compute it.

One draft step k at root i, with state s (at k = 0 the fused target states of position i),
token u = x[i+1+k] and rotary position i + k:

    e = input_layernorm(embed[u])          m = hidden_norm(s)
    y = (m if norm_before_residual else s) + attention([e; m])
    z = y + mlp(post_attention_layernorm(y))        further layers are plain pre-norm blocks
    logits = lm_head(norm(z))              target id = draft id + d2t[draft id]
    next state = norm(z) if feedback is post-norm else z
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn

from draftconv.drafter.facts import Facts
from draftconv.drafter.problems import KINDS
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.errors import Refused, UsageError
from draftconv.reference.attention import build_attention
from draftconv.reference.cache import Cache, LayerCache, Span
from draftconv.reference.layers import Mlp, RmsNorm, check_tensors

_UNREAD = frozenset({"t2d"})  # follows from d2t; engines do not read it


class FirstLayer(nn.Module):
    """The layer that reads the token embedding beside the state.

    Args:
        as_trained: with `facts.double_norm`, normalise the state twice as the trainer
            did. Engines normalise it once, so this is for comparison only.
    """

    def __init__(self, facts: Facts, *, as_trained: bool) -> None:
        super().__init__()
        self.double_norm = as_trained and facts.double_norm
        self.norm_before_residual = facts.norm_before_residual
        self.input_layernorm = RmsNorm(facts.hidden, facts.eps)
        self.hidden_norm = RmsNorm(facts.hidden, facts.eps)
        self.self_attn = build_attention(
            2 * facts.hidden, facts.hidden, facts.attention, facts.rope, eps=facts.eps, window=facts.window
        )
        self.post_attention_layernorm = RmsNorm(facts.hidden, facts.eps)
        self.mlp = Mlp(facts.hidden, facts.intermediate, bias=facts.mlp_bias, activation=facts.activation)

    def forward(self, embedding_BTH: Tensor, state_BTH: Tensor, cache: LayerCache, span: Span) -> Tensor:
        e_BTH, m_BTH = self._normed(embedding_BTH, state_BTH)
        residual_BTH = m_BTH if self.norm_before_residual else state_BTH
        y_BTH = residual_BTH + self.self_attn(torch.cat((e_BTH, m_BTH), dim=-1), cache, span)
        z_BTH: Tensor = y_BTH + self.mlp(self.post_attention_layernorm(y_BTH))
        return z_BTH

    def remember(self, embedding_BTH: Tensor, state_BTH: Tensor, cache: LayerCache, span: Span) -> None:
        """Let rows join the context that nothing else is wanted of."""
        self.self_attn.remember(torch.cat(self._normed(embedding_BTH, state_BTH), dim=-1), cache, span)

    def _normed(self, embedding_BTH: Tensor, state_BTH: Tensor) -> tuple[Tensor, Tensor]:
        m_BTH = self.hidden_norm(self.input_layernorm(state_BTH) if self.double_norm else state_BTH)
        return self.input_layernorm(embedding_BTH), m_BTH


class LaterLayer(nn.Module):
    """A plain pre-norm block on the previous layer's output."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(facts.hidden, facts.eps)
        self.self_attn = build_attention(
            facts.hidden, facts.hidden, facts.attention, facts.rope, eps=facts.eps, window=facts.window
        )
        self.post_attention_layernorm = RmsNorm(facts.hidden, facts.eps)
        self.mlp = Mlp(facts.hidden, facts.intermediate, bias=facts.mlp_bias, activation=facts.activation)

    def forward(self, z_BTH: Tensor, cache: LayerCache, span: Span) -> Tensor:
        y_BTH = z_BTH + self.self_attn(self.input_layernorm(z_BTH), cache, span)
        out_BTH: Tensor = y_BTH + self.mlp(self.post_attention_layernorm(y_BTH))
        return out_BTH

    def remember(self, z_BTH: Tensor, cache: LayerCache, span: Span) -> None:
        """Let rows join the context that nothing else is wanted of."""
        self.self_attn.remember(self.input_layernorm(z_BTH), cache, span)


class DrafterModel(nn.Module):
    """An EAGLE-3 / 3.1 drafter whose parameter names are the canonical tensor names.

    Use `from_tensors` for a checkpoint; the constructor leaves random weights (training).

    Raises:
        Refused: both norms before fc, which engines order differently.
        UsageError, Undecided: no forward for this activation or rotary embedding.
    """

    d2t: Tensor

    def __init__(self, facts: Facts, *, as_trained: bool = False) -> None:
        super().__init__()
        if facts.fusion == "both":
            kind = KINDS["both-fusion-norms"]
            raise Refused(f"the reference forward computes no {kind.title}", why=kind.why, cure=kind.cure)
        self.facts = facts
        self.embed_tokens = nn.Embedding(facts.vocab, facts.hidden)
        if facts.fusion == "fc_norm":
            self.fc_norm = nn.ModuleList(RmsNorm(facts.target_hidden, facts.eps) for _ in range(facts.aux))
        if facts.fusion == "norm_before_fc":
            self.input_norm = RmsNorm(facts.aux * facts.target_hidden, facts.eps)
        self.fc = nn.Linear(facts.aux * facts.target_hidden, facts.hidden, bias=facts.fc_bias)
        later = (LaterLayer(facts) for _ in range(facts.layers - 1))
        self.layers = nn.ModuleList([FirstLayer(facts, as_trained=as_trained), *later])
        self.norm = RmsNorm(facts.hidden, facts.eps)
        self.lm_head = nn.Linear(facts.hidden, facts.draft_vocab, bias=False)
        if facts.reduced_vocab:
            self.register_buffer("d2t", torch.zeros(facts.draft_vocab, dtype=torch.int64))

    @classmethod
    def from_tensors(
        cls,
        facts: Facts,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        as_trained: bool = False,
    ) -> Self:
        """Build a drafter from canonical tensors, ready for inference.

        Args:
            tensors: canonical name -> tensor; floating tensors are cast to `dtype`.
            as_trained: see `FirstLayer`.

        Raises:
            BadCheckpoint: tensors are missing, superfluous or of another shape than the facts say.
        """
        weights = {name: tensor for name, tensor in tensors.items() if name not in _UNREAD}
        with torch.device("meta"):
            model = cls(facts, as_trained=as_trained)
        absent = [name for name in (EMBEDDING, HEAD) if name not in weights]
        check_tensors(
            weights,
            model.state_dict(),
            "the drafter",
            cure=f"give the target's table for {', '.join(absent)}" if absent else "",
        )
        cast = {name: t.to(dtype) if t.is_floating_point() else t for name, t in weights.items()}
        model.load_state_dict(cast, assign=True)
        return model.eval().requires_grad_(False)

    def changed(self, facts: Facts | None = None, tensors: Mapping[str, Tensor] = MappingProxyType({})) -> Self:
        """The drafter, as `from_tensors` makes it, under other facts or with other tensors; all the rest is shared.

        Tensors that the new facts have no place for are left out.

        Raises:
            Refused, UsageError, Undecided: no forward for these facts.
            BadCheckpoint: the tensors do not fit them.
        """
        facts = facts or self.facts
        with torch.device("meta"):
            places = type(self)(facts).state_dict()
        weights = {name: tensor for name, tensor in self.state_dict().items() if name in places}
        return self.from_tensors(facts, weights | dict(tensors), dtype=self.fc.weight.dtype)

    def cache(self, room: int = 0) -> Cache:
        """An empty memory for one batch of equally long requests; `room` as in `LayerCache`."""
        return Cache.empty(self.facts.layers, room)

    def fuse(self, states_BTAW: Tensor) -> Tensor:
        """Target states at the captured boundaries, ascending, to step-0 states.

        Args:
            states_BTAW: [..., A, W].

        Returns:
            [..., H].
        """
        facts = self.facts
        if states_BTAW.shape[-2:] != (facts.aux, facts.target_hidden):
            raise UsageError(
                f"states of shape {tuple(states_BTAW.shape)} do not end in "
                f"({facts.aux} boundaries, {facts.target_hidden} elements)"
            )
        if facts.fusion == "fc_norm":
            normed = [norm(states_BTAW[..., a, :]) for a, norm in enumerate(self.fc_norm)]
            states_BTAW = torch.stack(normed, dim=-2)
        joined = states_BTAW.flatten(-2)
        if facts.fusion == "norm_before_fc":
            joined = self.input_norm(joined)
        fused_BTH: Tensor = self.fc(joined)
        return fused_BTH

    def step(self, state_BTH: Tensor, token_BT: Tensor, cache: Cache, k: int = 0) -> Tensor:
        """Draft step `k`; at k = 0 its T rows join the context, at k >= 1 they are chains.

        Args:
            state_BTH: fused target states (k = 0) or what `feedback` made of step k - 1.
            token_BT: int64 target ids; row i holds x[i+1+k].
            k: 0, or one more than the cache's last step; then row j belongs to the j-th
                of the last T context rows, or of the chains that were picked (`Cache.pick`).

        Returns:
            z [B, T, H], for `logits` and `feedback`.

        Raises:
            UsageError: steps out of order, or more chains than context rows.
        """
        span = cache.advance(token_BT.shape[1], k, token_BT.device)
        z_BTH: Tensor = self.layers[0](self.embed_tokens(token_BT), state_BTH, cache.layers[0], span)
        for layer, memory in islice(zip(self.layers, cache.layers, strict=True), 1, None):
            z_BTH = layer(z_BTH, memory, span)
        return z_BTH

    def remember(self, state_BTH: Tensor, token_BT: Tensor, cache: Cache) -> None:
        """Step 0 for rows that nothing is drafted from: the last layer computes no more than their keys and values.

        Args:
            state_BTH, token_BT: as `step`.
        """
        span = cache.advance(token_BT.shape[1], 0, token_BT.device)
        inputs: tuple[Tensor, ...] = (self.embed_tokens(token_BT), state_BTH)
        layers: list[Any] = [*self.layers]
        for layer, memory in zip(layers[:-1], cache.layers[:-1], strict=True):
            inputs = (layer(*inputs, memory, span),)
        layers[-1].remember(*inputs, cache.layers[-1], span)

    def logits(self, z_BTH: Tensor) -> Tensor:
        """Draft logits [..., Vd]: the final norm is applied exactly once, here."""
        logits_BTV: Tensor = self.lm_head(self.norm(z_BTH))
        return logits_BTV

    def feedback(self, z_BTH: Tensor) -> Tensor:
        """The state that the next step reads: z itself, or the normed z (EAGLE-3.1)."""
        if self.facts.feedback == "post-norm":
            normed_BTH: Tensor = self.norm(z_BTH)
            return normed_BTH
        return z_BTH

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Rows of the head to the target's token ids; any shape, int64."""
        return draft_ids + self.d2t[draft_ids] if self.facts.reduced_vocab else draft_ids
