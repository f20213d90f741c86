"""The two target families that the fixtures use, as a plain torch forward.

`TargetModel` covers Llama (`LlamaForCausalLM`) and dense DeepSeek-V3 / Kimi-style MLA
(`DeepseekV3ForCausalLM` whose every layer is dense). Parameter names are transformers'.
It gives what a drafter needs: logits, and the residual stream at any boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.config import Config
from draftconv.drafter.facts import DEFAULT_EPS, Gqa, Mla, Rope
from draftconv.drafter.rope import read_rope
from draftconv.errors import Refused
from draftconv.reference.attention import build_attention
from draftconv.reference.cache import Cache, KeysValues, LayerCache, Span
from draftconv.reference.layers import Mlp, RmsNorm, check_tensors
from draftconv.reference.load import to_torch

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class TargetShape:
    """All that a target's forward depends on besides its weights."""

    attention: Gqa | Mla
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    rope: Rope
    eps: float
    tied: bool = False


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """Logits [B, T, V], boundary states [B, T, A, W] and the normed last state [B, T, W], in the weights' dtype."""

    logits: Tensor
    states: Tensor
    final: Tensor


class TargetLayer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden, shape.eps)
        self.self_attn = build_attention(shape.hidden, shape.hidden, shape.attention, shape.rope, eps=shape.eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape.hidden, shape.intermediate, bias=False, activation="silu")

    def forward(self, x_BTH: Tensor, cache: LayerCache, span: Span) -> Tensor:
        x_BTH = x_BTH + self.self_attn(self.input_layernorm(x_BTH), cache, span)
        out_BTH: Tensor = x_BTH + self.mlp(self.post_attention_layernorm(x_BTH))
        return out_BTH


class TargetBody(nn.Module):
    """Embedding, layers and final norm (transformers' `model.` subtree)."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(TargetLayer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.hidden, shape.eps)


class TargetModel(nn.Module):
    """A target with a key/value cache. Build it with `TargetModel(shape)` or `load_target`."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = TargetBody(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def cache(self) -> Cache:
        """An empty cache for one batch."""
        return Cache.empty(self.shape.layers)

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None, boundaries: Sequence[int] = ()) -> TargetOutput:
        """Run `tokens_BT` (int64) after what `cache` holds.

        Args:
            boundaries: residual-stream boundaries 0...L to return; boundary i enters layer
                i, boundary L leaves the last layer before the final norm.
        """
        cache = cache or self.cache()
        span = cache.advance(tokens_BT.shape[1], 0, tokens_BT.device)
        x_BTH: Tensor = self.model.embed_tokens(tokens_BT)
        stream = {0: x_BTH}
        for i, layer in enumerate(self.model.layers):
            x_BTH = layer(x_BTH, cache.layers[i], span)
            stream[i + 1] = x_BTH
        final_BTH: Tensor = self.model.norm(x_BTH)
        states = [stream[b] for b in boundaries]
        states_BTAW = torch.stack(states, dim=2) if states else x_BTH.new_zeros(*x_BTH.shape[:2], 0, x_BTH.shape[2])
        return TargetOutput(self.lm_head(final_BTH), states_BTAW, final_BTH)


def load_target(directory: Path, dtype: torch.dtype = torch.float32) -> TargetModel:
    """Load a transformers-style directory (config.json and weights, sharded or not).

    Raises:
        BadCheckpoint: files, keys or tensors are missing, superfluous or of another shape.
        Refused: an architecture or an option that this forward does not compute.
    """
    checkpoint = open_checkpoint(directory)
    shape = target_shape(checkpoint.config)
    tensors = {name: to_torch(ref) for name, ref in checkpoint.tensors.items()}
    if shape.tied and EMBEDDING in tensors:
        tensors.setdefault(HEAD, tensors[EMBEDDING])
    model = TargetModel(shape).to(dtype)
    check_tensors(tensors, model.state_dict(), f"the target {checkpoint.name}")
    model.load_state_dict(tensors)
    return model.eval().requires_grad_(False)


def target_shape(data: Mapping[str, object]) -> TargetShape:
    """Read a transformers config.json of either family.

    Raises:
        BadCheckpoint: a size is missing, or a key has the wrong type.
        Refused: another architecture, scaled rotary embedding, biases or routed experts.
    """
    config = Config(data, "target: config.json")
    family = config.text("model_type")
    match family:
        case "llama":
            attention: Gqa | Mla = _llama_attention(config)
        case "deepseek_v3" | "kimi_k2":
            attention = _latent_attention(config)
        case _:
            raise _refused(f"model_type {family}")
    eps = config.number("rms_norm_eps")
    return TargetShape(
        attention=attention,
        layers=config.required("num_hidden_layers"),
        hidden=config.required("hidden_size"),
        intermediate=config.required("intermediate_size"),
        vocab=config.required("vocab_size"),
        rope=_plain_rope(config, mla=isinstance(attention, Mla)),
        eps=DEFAULT_EPS if eps is None else eps,
        tied=bool(config.flag("tie_word_embeddings")),
    )


def _llama_attention(config: Config) -> Gqa:
    if config.flag("attention_bias") or config.flag("mlp_bias"):
        raise _refused("biases")
    heads = config.required("num_attention_heads")
    return Gqa(
        heads=heads,
        kv_heads=config.size("num_key_value_heads") or heads,
        head_dim=config.size("head_dim") or config.required("hidden_size") // heads,
    )


def _latent_attention(config: Config) -> Mla:
    if (config.integer("first_k_dense_replace") or 0) < config.required("num_hidden_layers"):
        raise _refused("routed experts")
    return Mla(
        heads=config.required("num_attention_heads"),
        q_lora=config.size("q_lora_rank"),
        kv_lora=config.required("kv_lora_rank"),
        nope=config.required("qk_nope_head_dim"),
        rope=config.required("qk_rope_head_dim"),
        v=config.required("v_head_dim"),
    )


def _plain_rope(config: Config, *, mla: bool) -> Rope:
    rope, _, contradictions = read_rope(config, mla=mla)
    if contradictions:
        raise _refused(f"rotary embedding that is spelled in two ways ({'; '.join(contradictions)})")
    if rope.kind != "default":
        raise _refused(f"scaled rotary embedding ({rope.kind})")
    return rope


def _refused(what: str) -> Refused:
    return Refused(
        f"the reference target forward has no {what}",
        why="its text and states would not be those of the real target",
        cure="take a dense target of model_type llama or deepseek_v3",
    )


class TargetSession:
    """One request on a `TargetModel`, as `speculate.LiveTarget` wants it."""

    def __init__(self, model: TargetModel, boundaries: Sequence[int]) -> None:
        self.model, self.boundaries = model, tuple(boundaries)
        self.cache = model.cache()

    @torch.no_grad()
    def feed(self, token_T: Tensor) -> tuple[Tensor, Tensor]:
        """Append tokens; logits [T, V] and states [T, A, W]."""
        output = self.model(token_T[None], self.cache, self.boundaries)
        return output.logits[0], output.states[0]

    def rewind(self, rows: int) -> None:
        """Forget all tokens from position `rows` on."""
        self.cache.rows = min(rows, self.cache.rows)
        for layer in self.cache.layers:
            if layer.context:
                layer.context = KeysValues(layer.context.key[:, :rows], layer.context.value[:, :rows])


@torch.no_grad()
def continue_greedily(model: TargetModel, prompt_BT: Tensor, length: int) -> Tensor:
    """The target's own next `length` tokens after equally long prompts: [B, length]."""
    cache = model.cache()
    token_BT = model(prompt_BT, cache).logits[:, -1:].argmax(-1)
    chosen = [token_BT]
    while len(chosen) < length:
        token_BT = model(token_BT, cache).logits.argmax(-1)
        chosen.append(token_BT)
    return torch.cat(chosen, dim=1)
