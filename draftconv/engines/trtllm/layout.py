"""How a drafter is written for TensorRT-LLM."""

from __future__ import annotations

from draftconv.engines.layout import engine_config, engine_layout
from draftconv.engines.trtllm.aux_layers import spelled
from draftconv.layouts.base import ProducerIds, Spelling, Writer, Writing
from draftconv.layouts.config_json import nested_ids_if_any
from draftconv.layouts.limits import lacks

IDS = ProducerIds("trtllm", None, True, source="TensorRT-LLM keeps the ids in the serve YAML")

LIMITS = lacks(
    "TensorRT-LLM",
    "both-fusions",
    "activation",
    "norm_before_residual",
    "qk-norm",
    "lone-o-bias",
    "mla-plain-query",
    "mla-half-split",
    "mla-norm_before_fc",
    "mla-reduced",
    "window",
)


def _config(writing: Writing) -> dict[str, object]:
    if writing.boundaries is not None:
        spelled(writing.boundaries)
    regular = {"next_layer_regular": True} if writing.facts.layers > 1 else {}
    return engine_config(writing, nested_ids_if_any(writing) | regular)


LAYOUTS = (
    engine_layout(
        "trtllm",
        "TensorRT-LLM",
        Writer(
            Spelling(
                first="midlayer.{i}.",
                later="midlayer.{i}.",
                alone="midlayer.",
                later_norm="hidden_norm",
                o_bias=True,
            ),
            _config,
            LIMITS,
            serves=("trtllm",),
        ),
        "TensorRT-LLM 1.3.0rc (00679c66), _torch/models/modeling_speculative.py",
        ids=IDS,
    ),
)
