"""Where vLLM multiplies a drafter's head in 16 bits only. Its `fc` is asked like any linear, in every class."""

from __future__ import annotations

from draftconv.engines.hardware import GPUS
from draftconv.engines.kept_roles import KeptRole

PACKED = ("compressed-pack", "gptq", "autoawq")
"""Formats whose quantized values are no tensor called `weight` once they are loaded."""

KEPT_ROLES: tuple[KeptRole, ...] = (
    KeptRole("lm_head", "its MLA class builds the head without asking how it is quantized",
             "vllm/model_executor/models/deepseek_eagle3.py, 0.33.0; run with 0.32.0", "run", gqa=False),
    KeptRole("lm_head", "Quark's method has no head", "vllm/model_executor/layers/quantization/quark/quark.py, 0.33.0",
             "run", formats=("quark-int4", "quark-mxfp4")),
    KeptRole("lm_head", "GPTQ's method makes no g_idx for the head, and its loader stops at a tensor without a place",
             "vllm/model_executor/layers/quantization/auto_gptq.py, 0.33.0; run with 0.32.0", "run", formats=("gptq",)),
    KeptRole("lm_head", "Model Runner V2 compares the weight of the head with the target's, and packed values are no "
             "weight: it ends with an AttributeError",
             "vllm/v1/worker/gpu/spec_decode/eagle/utils.py, 0.33.0", "read", formats=PACKED, chips=GPUS),
)  # fmt: skip
