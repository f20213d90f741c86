"""What TensorRT-LLM's classes call a drafter's linear layers.

_torch/models/modeling_{speculative,deepseekv3}.py, 1.3.0rc at 00679c66 and 1.2.
"""

from __future__ import annotations

from draftconv.drafter.fused_projections import A_PROJECTIONS, ATTENTION
from draftconv.engines.module_names import B_PROJECTIONS, LM_HEAD, MLP, O_PROJ, ModuleNames

NAMES = ModuleNames(
    "model.midlayer.{}",
    layer={
        "llama": (("self_attn.qkv_proj", "Linear", ATTENTION), O_PROJ, *MLP),
        "mla": (("self_attn.kv_a_proj_with_mqa", "Linear", A_PROJECTIONS), *B_PROJECTIONS, O_PROJ, *MLP),
    },
    once={"llama": (("model.fc", "Linear", ("fc",)), LM_HEAD)},
    only="model.midlayer",
)
