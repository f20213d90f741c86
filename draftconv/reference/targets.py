"""The two target families that the fixtures use, as a plain torch forward.

`TargetModel` covers Llama (`LlamaForCausalLM`) and dense DeepSeek-V3 / Kimi-style MLA
(`DeepseekV3ForCausalLM` whose every layer is dense). Parameter names are transformers'.
It gives what a drafter needs: logits, and the residual stream at any boundary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from draftconv.drafter.facts import Gqa, Mla, Rope
from draftconv.errors import BadCheckpoint, Refused
from draftconv.reference.attention import Cache, LayerCache, Span, build_attention
from draftconv.reference.blocks import Mlp, RmsNorm


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
    """Logits [B, T, V], boundary states [B, T, A, W] and the normed last state [B, T, W]."""

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
        span = cache.advance(tokens_BT.shape[1], 0)
        x_BTH: Tensor = self.model.embed_tokens(tokens_BT)
        stream = {0: x_BTH}
        for i, layer in enumerate(self.model.layers):
            x_BTH = layer(x_BTH, cache.layers[i], span)
            stream[i + 1] = x_BTH
        final_BTH: Tensor = self.model.norm(x_BTH)
        taken = [stream[b] for b in boundaries]
        states_BTAW = torch.stack(taken, dim=2) if taken else x_BTH.new_zeros(*x_BTH.shape[:2], 0, x_BTH.shape[2])
        return TargetOutput(self.lm_head(final_BTH), states_BTAW, final_BTH)


def load_target(directory: Path, dtype: torch.dtype = torch.float32) -> TargetModel:
    """Load a transformers-style directory (config.json and safetensors, sharded or not).

    Raises:
        BadCheckpoint: files or tensors are missing or superfluous.
        Refused: an architecture or an option that this forward does not compute.
    """
    shape = target_shape(json.loads((directory / "config.json").read_text()))
    tensors: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors.update(load_file(file))
    if shape.tied:
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    model = TargetModel(shape).to(dtype)
    problem = model.load_state_dict(tensors, strict=False)
    if problem.missing_keys or problem.unexpected_keys:
        raise BadCheckpoint(
            f"{directory.name}: missing tensors {problem.missing_keys[:3]}, "
            f"unexpected tensors {problem.unexpected_keys[:3]}",
            why="the target's greedy text would not be the real one",
        )
    return model.eval().requires_grad_(False)


def target_shape(config: Mapping[str, Any]) -> TargetShape:
    """Read a transformers config.json of either family.

    Raises:
        Refused: another architecture, scaled rotary embedding, biases or routed experts.
    """
    family = config.get("model_type")
    if family == "llama":
        attention: Gqa | Mla = _llama_attention(config)
    elif family in {"deepseek_v3", "kimi_k2"}:
        attention = _latent_attention(config)
    else:
        raise Refused(f"no reference forward for target model_type {family!r}", cure="llama or deepseek_v3")
    return TargetShape(
        attention=attention,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        rope=_plain_rope(config, "halves" if family == "llama" else "interleaved"),
        eps=config["rms_norm_eps"],
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _llama_attention(config: Mapping[str, Any]) -> Gqa:
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise Refused("the reference target forward has no biases")
    heads = config["num_attention_heads"]
    return Gqa(
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
    )


def _latent_attention(config: Mapping[str, Any]) -> Mla:
    if config.get("first_k_dense_replace", 0) < config["num_hidden_layers"]:
        raise Refused("the reference target forward has no routed experts", cure="a target with dense layers only")
    return Mla(
        heads=config["num_attention_heads"],
        q_lora=config.get("q_lora_rank"),
        kv_lora=config["kv_lora_rank"],
        nope=config["qk_nope_head_dim"],
        rope=config["qk_rope_head_dim"],
        v=config["v_head_dim"],
    )


def _plain_rope(config: Mapping[str, Any], pairs: Any) -> Rope:
    parameters = config.get("rope_parameters") or {}
    if config.get("rope_scaling") or parameters.get("rope_type", "default") != "default":
        raise Refused("the reference target forward has plain rotary embeddings only")
    return Rope(theta=float(parameters.get("rope_theta", config.get("rope_theta", 10000.0))), pairs=pairs)


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
        self.cache.rewind(rows)


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
