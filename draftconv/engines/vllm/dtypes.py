"""Quantized weights beside which vLLM cannot compute in float32."""

from __future__ import annotations

from draftconv.engines.dtypes import Float32Stop

_METHODS = "the method computes in bfloat16 and float16, and the start is refused"

FLOAT32: tuple[Float32Stop, ...] = (
    Float32Stop(("gptq", "autoawq", "quark-int4", "modelopt-fp8"), _METHODS,
         "vllm/config/vllm.py, get_supported_act_dtypes of the methods, 0.32.0", "run"),
    Float32Stop(("quark-mxfp4", "modelopt-nvfp4"), _METHODS,
         "vllm/config/vllm.py, get_supported_act_dtypes of the methods, 0.32.0", "read"),
    Float32Stop(("compressed-pack",), "CPUWNA16 has no float32: the server starts, and dies at the first request",
         "vllm/model_executor/kernels/linear/mixed_precision/cpu.py, 0.32.0", "run", chips=("cpu",)),
)  # fmt: skip
