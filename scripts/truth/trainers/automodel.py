"""NeMo Automodel 0.7: its draft classes by their registry, run by `Eagle3TrainerModule`, saved as Hugging Face does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from truth.trainers.steps import STEPS, Inputs, Steps, watching
from truth.trainers.trainer import Origin

ORIGIN = Origin("NeMo Automodel", package="nemo-automodel")
WRITES = "automodel"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM"}
"""model_type of a drafter → the target for which the registry builds it."""


def build(config: Mapping[str, Any], embedding: Tensor | None) -> nn.Module:  # noqa: ARG001
    from nemo_automodel.components.speculative.eagle.registry import resolve_eagle3_draft_spec
    from transformers import AutoConfig

    kind = str(config["model_type"])
    own = AutoConfig.for_model(kind, **{key: value for key, value in config.items() if key != "model_type"})
    own.pad_token_id = getattr(own, "pad_token_id", None)
    model: nn.Module = resolve_eagle3_draft_spec([ARCHITECTURES[kind]]).draft_cls(own)
    return model


def load(path: Path, embedding: Tensor) -> nn.Module:
    """As its warm start does: the tensors of a consolidated export, every one of them."""
    model = build(json.loads((path / "config.json").read_text(encoding="utf-8")), embedding).float()
    model.load_state_dict(load_file(path / "model.safetensors"))
    return model


def run(model: nn.Module, inputs: Inputs) -> Steps:
    from nemo_automodel.components.speculative.eagle.core import Eagle3TrainerModule

    drafter: Any = model
    d2t, vocab = getattr(drafter, "d2t", None), drafter.config.vocab_size
    ids = torch.arange(drafter.draft_vocab_size) + (0 if d2t is None else d2t)
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[ids] = True
    trained = Eagle3TrainerModule(drafter, selected_token_ids=ids, selected_token_mask=mask, ttt_steps=STEPS)
    rows = inputs.tokens_BT.shape[1]
    fed = watching(drafter, lambda _, kwargs: kwargs["projected_hidden_states"])
    with torch.no_grad(), fed as states, watching(drafter.lm_head) as logits:
        trained(
            input_ids=inputs.tokens_BT,
            attention_mask=torch.ones(1, rows),
            loss_mask=torch.ones(1, rows),
            aux_hidden_states=inputs.joined,
            target_logits=torch.zeros(1, rows, vocab),
        )
    return Steps.of(states.given, logits.returned, d2t)


def save(model: nn.Module, path: Path) -> None:
    """`save_pretrained`: its checkpointer consolidates to the same names."""
    saved: Any = model
    saved.save_pretrained(path)
