"""Where SGLang multiplies a drafter's head or `fc` in 16 bits only."""

from __future__ import annotations

from draftconv.engines.kept_roles import KeptRole

_QUANT = "sglang/srt/layers/quantization"

KEPT_ROLES: tuple[KeptRole, ...] = (
    KeptRole("fc", "its Llama class builds fc as a plain torch.nn.Linear",
             "sglang/srt/models/llama_eagle3.py, 0.5.23", "run", mla=False),
    KeptRole("lm_head", "AWQ's method has no head that runs", f"{_QUANT}/awq/awq.py and auto_round.py, 0.5.23", "run",
             formats=("autoawq",)),
    KeptRole("lm_head", "Quark's method has no head", f"{_QUANT}/quark/quark.py, 0.5.23", "run",
             formats=("quark-int4", "quark-mxfp4")),
)  # fmt: skip
