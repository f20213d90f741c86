"""SafeAILab EAGLE, of a source that the user names: the class that drafts there, row by row with its own cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from truth.trainers.steps import ROWS, STEPS, Inputs, Steps
from truth.trainers.trainer import Origin

ORIGIN = Origin(
    "SafeAILab EAGLE",
    variable="DRAFTCONV_SAFEAILAB_SOURCE",
    commit="DRAFTCONV_SAFEAILAB_COMMIT",
    bare=("eagle", "eagle.model"),
)
WRITES = "safeailab"


def build(config: Mapping[str, Any], embedding: Tensor | None) -> nn.Module:  # noqa: ARG001
    from eagle.model.cnets import Model
    from eagle.model.configs import EConfig

    own: Any = EConfig(**config)
    # transformers 5 moves both into one object; the versions that this was written for leave them as the file has them
    own.rope_scaling = config.get("rope_scaling")
    if "rope_theta" in config:
        own.rope_theta = config["rope_theta"]
    model: nn.Module = Model(own)
    return model


def load(path: Path, embedding: Tensor) -> nn.Module:
    """As `EaModel` does: strict=False, then the target's embedding where the file has none."""
    model: Any = build(json.loads((path / "config.json").read_text(encoding="utf-8")), embedding)
    weights = path / "model.safetensors"
    stored = load_file(weights) if weights.exists() else torch.load(path / "pytorch_model.bin", weights_only=True)
    if "embed_tokens.weight" not in stored:
        model.embed_tokens.weight.data = embedding.clone()
    model.load_state_dict(stored, strict=False)
    drafter: nn.Module = model.float()
    return drafter


def run(model: nn.Module, inputs: Inputs) -> Steps:
    """The calls of `topK_genrate`, with given tokens in place of the best ones."""
    draft: Any = model
    tokens = inputs.tokens_BT
    with torch.no_grad():
        draft.reset()
        out, (kept,) = draft(inputs.joined, input_ids=tokens, use_cache=True)
        steps = [[row] for row in out[0]]
        for j in range(ROWS - STEPS + 1):
            cache = (tuple(part[:, :, : j + 1] for part in kept),)
            for k in range(1, STEPS):
                z, cache = draft(
                    steps[j][-1][None, None],
                    input_ids=tokens[:, j + k : j + k + 1],
                    past_key_values=cache,
                    use_cache=True,
                )
                steps[j].append(z[0, 0])
        outs = [torch.stack([row[min(k, len(row) - 1)] for row in steps])[None] for k in range(STEPS)]
        logits = [draft.lm_head(draft.norm(z)) for z in outs]
        states = [draft.fc(inputs.joined), *outs[: STEPS - 1]]
    reduced = draft.config.vocab_size != draft.config.draft_vocab_size
    return Steps.of(states, logits, draft.d2t if reduced else None)


def save(model: nn.Module, path: Path) -> None:
    """What its DeepSpeed run leaves: everything but frozen parameters, beside its config."""
    drafter: Any = model
    path.mkdir(parents=True)
    frozen = {name for name, parameter in drafter.named_parameters() if not parameter.requires_grad}
    torch.save({name: t for name, t in drafter.state_dict().items() if name not in frozen}, path / "pytorch_model.bin")
    (path / "config.json").write_text(json.dumps(drafter.written), encoding="utf-8")
