"""Which layers of the target llama.cpp captures, and of which targets it can."""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.drafter.boundaries import IDS, default_triple
from draftconv.drafter.config import Config
from draftconv.drafter.facts import AuxLayers
from draftconv.engines import checks
from draftconv.engines.llamacpp.sources import IDS_BUILD
from draftconv.engines.rules import SimulatedLoad


def captured(load: SimulatedLoad) -> checks.Boundaries:
    """Ids at the top level, as boundaries and in their order; without any, the default triple of the target.

    Before `IDS_BUILD` the triple whatever config.json says.
    """
    ids = None if load.spec.before(*IDS_BUILD) else Config(load.view.config).integers(IDS)
    if ids:
        return ids
    return default_triple(load.target.layers) if load.target else AuxLayers.DEFAULT


HANDED_OUT: Mapping[str, int] = {
    "llama": 9606, "mistral": 9606, "mixtral": 9606, "gemma4": 9606, "gemma4_text": 9606, "gpt_oss": 9606,
    "qwen3": 9606, "qwen3_moe": 9606, "qwen3_5": 9723, "qwen3_5_text": 9723, "qwen3_5_moe": 9723,
    "qwen3_5_moe_text": 9723, "qwen3_next": 9850, "minimax_m2": 9990, "deepseek_v4": 10228, "nemotron_h": 10370,
    "minimax": 10437, "lfm2": 10540,
}  # fmt: skip
"""Target model_type → the build since which its graph keeps the state before each layer (`t_layer_inp`)."""

KEPT_BACK = frozenset({
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "gemma3", "gemma3_text", "glm4_moe", "glm4_moe_lite", "kimi_k2",
    "kimi_k25", "llama4", "llama4_text", "minimax_m3", "minimax_m3_vl", "mistral3", "phi3", "qwen2", "qwen2_moe",
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe",
})  # fmt: skip
"""Target model_types whose graphs were read and keep none."""

LAST_STATE = frozenset({"gpt_oss"})
"""Targets whose graph hands out the state after the last layer before the final norm; the others hand out the normed
one (gemma4, qwen3_5, qwen3_next, nemotron_h), or nothing at all (llama, qwen3)."""
