"""Projections that engines join into one linear layer: the one table of what they are called, apart and joined.

vLLM 0.33.0 `model_executor/models/{llama,deepseek}_eagle3.py`, SGLang 0.5.23 `srt/models/{llama,kimi_k25}_eagle3.py`;
read.
"""

from __future__ import annotations

from collections.abc import Mapping

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Joined module → its parts, which are quantized all or none, under scales that must fit each other."""

STORED_FUSED = ("qkv_proj", "gate_up_proj")
"""Those that a file may hold joined already."""

ATTENTION, A_PROJECTIONS, GATE_UP = (
    tuple(f"{module}.{part}" for part in FUSED[fused])
    for module, fused in (("self_attn", "qkv_proj"), ("self_attn", "fused_qkv_a_proj"), ("mlp", "gate_up_proj"))
)
"""The parts by their place in a layer."""

GROUPS = (ATTENTION, A_PROJECTIONS, GATE_UP)
