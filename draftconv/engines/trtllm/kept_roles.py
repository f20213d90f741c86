"""What of a drafter is left in 16 bits for TensorRT-LLM, because nobody has read what becomes of its scales."""

from __future__ import annotations

from draftconv.engines.kept_roles import KeptRole

KEPT_ROLES: tuple[KeptRole, ...] = (
    KeptRole("lm_head", "whether a drafter's head takes scales is not known",
             "tensorrt_llm/_torch/models/modeling_speculative.py, 1.3.0rc at 00679c66", "inferred"),
    KeptRole("fc", "whether a drafter's fc is multiplied under its scales is not known",
             "tensorrt_llm/_torch/models/modeling_speculative.py, 1.3.0rc at 00679c66", "inferred"),
)  # fmt: skip
