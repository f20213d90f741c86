"""speculators 0.9: opened by `SpeculatorModel.from_pretrained`, run by its model's own unrolled forward."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from truth.trainers.steps import STEPS, Inputs, Steps, watching
from truth.trainers.trainer import Origin

ORIGIN = Origin("speculators", package="speculators")
WRITES = "speculators"
EAGER = "eager"
"""Attention that every CPU computes; the default compiles a kernel."""


def load(path: Path, embedding: Tensor) -> nn.Module:  # noqa: ARG001
    """As a user would open it: the config, the weights, and the verifier that it names."""
    from speculators import SpeculatorModel, SpeculatorModelConfig

    config = SpeculatorModelConfig.from_pretrained(path)
    config.transformer_layer_config._attn_implementation = EAGER
    with patch.object(torch, "empty_like", _unwritten):
        model: nn.Module = SpeculatorModel.from_pretrained(str(path), config=config, dtype=torch.float32)
    return model


def _unwritten(tensor: Tensor, **options: Any) -> Tensor:
    """Memory that nobody has written, the same in every run.

    speculators 0.9.0 model.py (169, 182) takes a missing embedding or head from the verifier where that memory happens
    to hold a NaN, and goes on with whatever it holds else; transformers makes it by `torch.empty_like`.
    """
    return torch.ones_like(tensor, **options)


def run(model: nn.Module, inputs: Inputs) -> Steps:
    """`Eagle3DraftModel.forward` unrolls by itself, and feeds the tokens that it was given."""
    draft: Any = model
    fed = watching(draft.layers[0], lambda args, kwargs: args[0] if args else kwargs["hidden_states"])
    with torch.no_grad(), fed as states, watching(draft.lm_head) as logits:
        model(
            hidden_states=inputs.joined,
            input_ids=inputs.tokens_BT,
            document_ids=torch.zeros_like(inputs.tokens_BT),
            ttt_steps=STEPS,
        )
    width = states.given[0].shape[-1] // 2  # beside the embedding of the token
    return Steps.of([state[..., width:] for state in states.given], logits.returned, getattr(model, "d2t", None))


def build(config: Mapping[str, Any], embedding: Tensor | None) -> nn.Module:  # noqa: ARG001
    """A new drafter of its own class."""
    from speculators import SpeculatorModelConfig
    from speculators.models.eagle3 import Eagle3DraftModel

    own = SpeculatorModelConfig.from_dict(dict(config))
    own.transformer_layer_config._attn_implementation = EAGER
    model: nn.Module = Eagle3DraftModel(own)
    return model


def save(model: nn.Module, path: Path) -> None:
    saved: Any = model
    saved.save_pretrained(path)
