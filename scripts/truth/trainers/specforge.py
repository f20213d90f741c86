"""SpecForge 0.2: opened by its warm start, run by `OnlineEagle3Model`, saved by its exporter to HF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from truth.trainers.steps import STEPS, Inputs, Steps, watching
from truth.trainers.trainer import Origin

ORIGIN = Origin("SpecForge", package="specforge")
WRITES = "specforge-hf"


def load(path: Path, embedding: Tensor) -> nn.Module:
    """As a warm start does, which wants every tensor but the embedding and takes no other."""
    from specforge.modeling.auto import AutoDraftModelConfig
    from specforge.training.model_loading import warm_start_draft_model

    config = AutoDraftModelConfig.from_file(str(path / "config.json"))
    model: Any = _of(config)
    warm_start_draft_model(model, str(path), draft_config=config, strategy="eagle3", allow_missing_embedding=True)
    if "embed_tokens.weight" not in load_file(path / "model.safetensors"):
        model.embed_tokens.weight.data = embedding.clone()
    drafter: nn.Module = model.float()
    return drafter


def _of(config: Any) -> nn.Module:
    from specforge.modeling.auto import AutoDraftModel

    model: nn.Module = AutoDraftModel.from_config(config)
    return model


def run(model: nn.Module, inputs: Inputs) -> Steps:
    """Its training module, without the loss, whose kernel is Triton's."""
    from specforge.algorithms.eagle3 import model as eagle3

    draft: Any = model
    trained = eagle3.OnlineEagle3Model(draft, length=STEPS, attention_backend="sdpa")
    rows, vocab = inputs.tokens_BT.shape[1], draft.vocab_size
    no_loss = patch.object(eagle3, "_compute_loss_and_acceptance_rate", return_value=(torch.zeros(()), torch.zeros(())))
    fed = watching(draft.midlayer, lambda _, kwargs: kwargs["hidden_states"])
    with torch.no_grad(), no_loss, fed as states, watching(draft.lm_head) as logits:
        trained(
            input_ids=inputs.tokens_BT,
            attention_mask=None,
            target=torch.zeros(1, rows, vocab),
            loss_mask=torch.ones(1, rows, 1),
            hidden_states=inputs.joined,
        )
    return Steps.of(states.given, logits.returned, draft.d2t)


def build(config: Mapping[str, Any], embedding: Tensor | None) -> nn.Module:  # noqa: ARG001
    from transformers import LlamaConfig

    return _of(LlamaConfig.from_dict(dict(config)))


def save(model: nn.Module, path: Path) -> None:
    """A training state of the model's tensors through `export_to_hf`, as `specforge export` calls it."""
    from specforge.export.to_hf import export_to_hf

    drafter: Any = model
    state = path.with_name(f"{path.name}-state")
    state.mkdir(parents=True)
    torch.save({"draft_state_dict": drafter.state_dict(), "strategy": "eagle3"}, state / "training_state.pt")
    config = state / "draft.json"
    config.write_text(json.dumps(drafter.config.to_dict()), encoding="utf-8")
    export_to_hf(str(state), str(config), str(path))
