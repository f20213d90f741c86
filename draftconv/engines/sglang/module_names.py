"""What SGLang's classes call a drafter's linear layers: srt/models/{llama,kimi_k25}_eagle3.py, 0.5.23."""

from __future__ import annotations

from draftconv.drafter.fused_projections import A_PROJECTIONS, ATTENTION, GATE_UP
from draftconv.engines.module_names import (
    B_PROJECTIONS,
    LM_HEAD,
    MERGED,
    MLP,
    O_PROJ,
    QKV,
    REPLICATED,
    ROW,
    ModuleNames,
)

NAMES = ModuleNames(
    "model",
    layer={
        "llama": (  # the class replaces what its parent built, and passes bare names
            ("qkv_proj", QKV, ATTENTION),
            O_PROJ,
            ("gate_up_proj", MERGED, GATE_UP),
            ("down_proj", ROW, ("mlp.down_proj",)),
        ),
        "mla": (
            ("self_attn.fused_qkv_a_proj_with_mqa", REPLICATED, A_PROJECTIONS),
            *B_PROJECTIONS,
            O_PROJ,
            *MLP,
        ),
    },
    once={"llama": (LM_HEAD,), "mla": (("model.fc", REPLICATED, ("fc",)), LM_HEAD)},
    apart=frozenset({"fc"}),
)
