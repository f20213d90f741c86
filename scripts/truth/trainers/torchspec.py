"""TorchSpec, of a source that the user names: its draft classes, run by `Eagle3Model`, saved by its converter."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from truth.trainers.steps import STEPS, Inputs, Steps, watching
from truth.trainers.trainer import Origin

VARIABLE = "DRAFTCONV_TORCHSPEC_SOURCE"
ORIGIN = Origin(
    "TorchSpec",
    variable=VARIABLE,
    commit="DRAFTCONV_TORCHSPEC_COMMIT",
    bare=("torchspec", "torchspec.config", "torchspec.models", "torchspec.models.ops", "torchspec.training"),
)
WRITES = "torchspec-native"


def load(path: Path, embedding: Tensor) -> nn.Module:
    """As training from a published draft does, which is strict both ways."""
    from torchspec.training.checkpoint import load_initial_draft_weights

    model = build(json.loads((path / "config.json").read_text(encoding="utf-8")), embedding)
    load_initial_draft_weights(model, str(path))
    return model.float()


def run(model: nn.Module, inputs: Inputs) -> Steps:
    """Its training module, without the loss; the logits are those of `compute_logits`, which the loss fuses."""
    from torchspec.models import eagle3

    draft: Any = model
    trained = eagle3.Eagle3Model(draft, length=STEPS, attention_backend="sdpa")
    nothing = (torch.zeros(()),) * 4
    no_loss = patch.object(trained, "_calculate_loss", return_value=nothing)
    fed = watching(draft.midlayer, lambda _, kwargs: kwargs["hidden_states"])
    with torch.no_grad(), no_loss, fed as states:
        trained(
            input_ids=inputs.tokens_BT,
            attention_mask=None,
            target=None,
            loss_mask=torch.ones(inputs.tokens_BT.shape),
            hidden_states=inputs.joined,
        )
        logits = [draft.compute_logits(z) for z in states.returned]
    return Steps.of(states.given, logits, getattr(draft, "d2t", None))


def build(config: Mapping[str, Any], embedding: Tensor | None) -> nn.Module:  # noqa: ARG001
    from torchspec.models.draft.auto import AutoDraftModelConfig, AutoEagle3DraftModel

    model: nn.Module = AutoEagle3DraftModel.from_config(AutoDraftModelConfig.from_dict(dict(config)))
    return model


def save(model: nn.Module, path: Path) -> None:
    """The last step of tools/convert_to_hf.py, with the vocabulary maps where the head is reduced."""
    script = Path(os.environ[VARIABLE]) / "tools" / "convert_to_hf.py"
    spec = importlib.util.spec_from_file_location("torchspec_convert_to_hf", script)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(script)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    drafter: Any = model
    path.mkdir(parents=True)
    size = drafter.target_vocab_size
    if drafter.vocab_size == size:
        tool._save_without_vocab_pruning(drafter, str(path), drafter.written, size)
    else:
        maps = (drafter.d2t, drafter.t2d)
        tool._save_with_vocab_pruning(drafter, str(path), drafter.written, size, drafter.vocab_size, *maps)
