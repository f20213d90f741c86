"""A small transformers model: exporters take nothing less."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PREFIX = "model.layers.0."
LINEARS = (
    *(f"{PREFIX}self_attn.{name}_proj" for name in "qkvo"),
    *(f"{PREFIX}mlp.{name}_proj" for name in ("gate", "up", "down")),
)


def model(dtype: torch.dtype) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=48,
        architectures=["LlamaForCausalLM"],
        dtype=dtype,
    )
    model: torch.nn.Module = LlamaForCausalLM(config)
    return model.to(dtype).eval()


def weights(model: Any) -> dict[str, Tensor]:
    """Copies of the weights of `LINEARS`, which quantizers overwrite."""
    return {name: model.get_submodule(name).weight.detach().clone() for name in LINEARS}


def prompts() -> Tensor:
    return torch.randint(0, 48, (4, 24), generator=torch.Generator().manual_seed(5))
