"""What vLLM's classes call a drafter's linear layers.

model_executor/models/{llama,qwen3,deepseek}_eagle3.py, 0.33.0.
"""

from __future__ import annotations

from draftconv.drafter.fused_projections import A_PROJECTIONS, ATTENTION
from draftconv.engines.module_names import (
    B_PROJECTIONS,
    LM_HEAD,
    MLP,
    O_PROJ,
    QKV,
    REPLICATED,
    ModuleNames,
    Row,
)

_FC: Row = ("model.fc", REPLICATED, ("fc",))


NAMES = ModuleNames(
    "model.layers.{}",
    layer={
        "llama": (("self_attn.qkv_proj", QKV, ATTENTION), O_PROJ, *MLP),
        "qwen3": (("qkv_proj", QKV, ATTENTION), O_PROJ, *MLP),
        "mla": (
            ("self_attn.fused_qkv_a_proj", "DeepSeekV2FusedQkvAProjLinear", A_PROJECTIONS),
            *B_PROJECTIONS,
            O_PROJ,
            *MLP,
        ),
    },
    once={"llama": (_FC, LM_HEAD), "mla": (_FC,)},  # the MLA class gives its head no quantization
    counted_on=True,
)
