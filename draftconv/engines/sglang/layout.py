"""How a drafter is written for SGLang."""

from __future__ import annotations

from draftconv.engines.layout import engine_config, engine_layout
from draftconv.layouts.base import ProducerIds, Spelling, Writer, Writing
from draftconv.layouts.config_json import nested_ids
from draftconv.layouts.limits import lacks

IDS = ProducerIds("sglang", "by family", True, source="SGLang 0.5.23: depends on the target family")

LIMITS = lacks(
    "SGLang",
    "both-fusions",
    "activation",
    "norm_before_residual",
    "lone-fc-bias",
    "qk-norm",
    "mla-plain-query",
    "mla-norm_before_fc",
    "mla-layers",
    "qkv-bias",
    "mlp-bias",
    "window",
)


def _config(writing: Writing) -> dict[str, object]:
    config = engine_config(writing, nested_ids(writing, "SGLang"))
    # The one null that is written: it makes SGLang share the target's head (llama_eagle3.py, 0.5.23).
    return config if writing.facts.own_head else config | {"draft_vocab_size": None}


LAYOUTS = (
    engine_layout(
        "sglang",
        "SGLang",
        Writer(Spelling(later_norm="hidden_norm"), _config, LIMITS, serves=("sglang",)),
        "SGLang 0.5.23 srt/models/{llama_eagle3,kimi_k25_eagle3}.py",
        ids=IDS,
        ids_at="nested",
    ),
)
