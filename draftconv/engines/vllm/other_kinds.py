"""Drafters that are not EAGLE-3, and the method of `--speculative-config` that vLLM serves them with."""

from __future__ import annotations

from draftconv.engines.other_kinds import OtherKind

_CONFIG = "config/speculative.py, 0.32.0"
_MODELS = "config/speculative.py and model_executor/models/registry.py, 0.32.0"

OTHER_KINDS = {
    "dflash": OtherKind("method dflash", _MODELS),
    "dflash2": OtherKind("method dflash", _MODELS),
    "dspark": OtherKind("method dspark", _MODELS),
    "p-eagle": OtherKind("method eagle3 with parallel_drafting", _MODELS, "inferred"),
    "eagle": OtherKind("method eagle", _MODELS),
    "mtp": OtherKind("method mtp", _MODELS),
    "medusa": OtherKind("method medusa", _CONFIG),
    "mlp-speculator": OtherKind("method mlp_speculator", _CONFIG),
}
