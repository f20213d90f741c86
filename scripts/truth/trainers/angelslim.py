"""AngelSlim 0.5: the classes of its trainer, run by the trainer's own unrolled loop, saved as Hugging Face's does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from truth.trainers.steps import STEPS, Inputs, Steps, watching
from truth.trainers.trainer import Origin

# The wheel's angelslim.compressor imports angelslim.compressor.qat, which the wheel does not hold.
ORIGIN = Origin("AngelSlim", package="angelslim", bare=("angelslim", "angelslim.compressor"))
WRITES = "angelslim"


def load(path: Path, embedding: Tensor) -> nn.Module:
    """The file's tensors, strict=False as everywhere in AngelSlim; without an embedding the target's."""
    model: Any = build(json.loads((path / "config.json").read_text(encoding="utf-8")), embedding)
    stored = load_file(path / "model.safetensors")
    if "embed_tokens.weight" not in stored:
        model.embed_tokens.weight.data = embedding.clone()
    model.load_state_dict(stored, strict=False)
    drafter: nn.Module = model.float()
    return drafter


def run(model: nn.Module, inputs: Inputs) -> Steps:
    """`Eagle3Trainer.draft_model_training_time_test`, which needs of the trainer only what stands here."""
    from angelslim.compressor.speculative.train.trainer.eagle3_trainer import Eagle3Trainer

    drafter: Any = model
    trainer = SimpleNamespace(draft_model=drafter, length=STEPS, _eval_pending_log={}, _eval_pending_log_count=0)
    rows = inputs.tokens_BT.shape[1]
    drafter.t2d[torch.arange(len(drafter.d2t)) + drafter.d2t] = True  # its trainer counts tokens and makes this anew
    fed = watching(drafter.midlayer, lambda args, _: args[1])
    # Its loop asks for gradients of what it is given.
    with fed as states, watching(drafter.lm_head) as logits:
        fused = drafter.combine_hidden_states(inputs.joined)
        mask, positions = Eagle3Trainer.prepare_attention_mask_and_position_ids(trainer, fused, None, None)
        Eagle3Trainer.draft_model_training_time_test(
            trainer, inputs.tokens_BT, fused, mask, positions,
            torch.zeros(1, rows, drafter.vocab_size), torch.ones(1, rows, 1), log_prefix="eval",
        )  # fmt: skip
    return Steps.of(states.given, logits.returned, drafter.d2t)


def build(config: Mapping[str, Any], embedding: Tensor | None) -> nn.Module:  # noqa: ARG001
    from angelslim.compressor.speculative.train.models.draft.llama_eagle3 import Eagle3LlamaForCausalLM
    from transformers import LlamaConfig

    model: nn.Module = Eagle3LlamaForCausalLM(LlamaConfig.from_dict(dict(config)))
    return model


def save(model: nn.Module, path: Path) -> None:
    """`save_model` falls back to Hugging Face's trainer, and that to this, where there is no ZeRO-3."""
    saved: Any = model
    saved.save_pretrained(path)
