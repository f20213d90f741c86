"""Stored forms that SGLang has a kernel for, and why it has none for others. Nothing here was run on a GPU."""

from __future__ import annotations

from draftconv.engines.hardware import AMD, GPUS, NVIDIA
from draftconv.engines.kernels import A16, CHANNEL, FP8_TENSOR, FP8_TOKEN, GROUP, INT8_TOKEN, NVFP4_BLOCK, Gap, Kernel

_SQ = "sglang/srt/layers/quantization"

_MARLIN_GROUPS = (32, 64, 128)

KERNELS: tuple[Kernel, ...] = (
    Kernel(NVIDIA, "compressed-pack", (CHANNEL, GROUP), None, f"{A16} (Marlin)",
           f"{_SQ}/compressed_tensors/schemes/compressed_tensors_wNa16.py, 0.5.23",
           groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel(GPUS, "compressed-float", (("fp8", "channel"),), FP8_TOKEN,
           "FP8 arithmetic, activations scaled per token",
           f"{_SQ}/compressed_tensors/compressed_tensors.py, 0.5.23"),
    Kernel(NVIDIA, "modelopt-fp8", (("fp8", "tensor"),), FP8_TENSOR,
           "FP8 arithmetic, activations under a fixed scale", f"{_SQ}/modelopt_quant.py, 0.5.23"),
    Kernel(("sm90",), "compressed-int", (("int8", "channel"),), INT8_TOKEN,
           "INT8 arithmetic, activations scaled per token", f"{_SQ}/compressed_tensors/compressed_tensors.py, 0.5.23"),
    Kernel(("sm100",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           "FP4 arithmetic, weights and activations", f"{_SQ}/modelopt_quant.py, 0.5.23", mla=False),
    Kernel(("sm90",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           f"{A16} (FP4 Marlin ignores the activation scales)", f"{_SQ}/modelopt_quant.py, 0.5.23",
           notes=("starts with --fp4-gemm-backend marlin only",), mla=False,
           arguments=("--fp4-gemm-backend", "marlin"), weight_only=True),
    Kernel(NVIDIA, "gptq", (CHANNEL, GROUP), None, f"{A16} (Marlin)",
           f"{_SQ}/gptq/gptq.py, 0.5.23", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel(NVIDIA, "autoawq", (GROUP,), None, f"{A16} (Marlin)",
           f"{_SQ}/awq/awq.py, 0.5.23", style="awq", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel(AMD, "autoawq", (GROUP,), None,
           f"{A16}: the whole weight is dequantized at every call, so it saves memory and no time",
           f"{_SQ}/auto_round.py, 0.5.23", style="auto-round", groups=_MARLIN_GROUPS, scales=("weight",),
           notes=("the loader was run, the kernel was not",), on_request=True),
)  # fmt: skip

GAPS: tuple[Gap, ...] = (
    Gap("Quark INT4 has no scheme for dense layers",
        f"{_SQ}/quark/quark.py, 0.5.23; run", formats=("quark-int4",)),
    Gap("on ROCm it has no INT4 kernel for dense layers: compressed-tensors are repacked with a CUDA symbol, "
        "and AWQ takes float16 only or dequantizes at every call",
        f"{_SQ}/compressed_tensors, awq, 0.5.23", chips=AMD, dtypes=("int4",)),
    Gap("INT4 of compressed-tensors is weight-only: no scheme has quantized activations for dense layers",
        f"{_SQ}/compressed_tensors/compressed_tensors.py, 0.5.23; run", dtypes=("int4",),
        inputs=(INT8_TOKEN, FP8_TOKEN)),
    Gap("INT4 beside static FP8 activations is ModelOpt's W4A8_AWQ, which its reader refuses",
        f"{_SQ}/modelopt_quant.py, 0.5.23", dtypes=("int4",), inputs=(FP8_TENSOR,)),
    Gap("scales of INT4 weights are loaded in the model's dtype, so F32 ones would be rounded",
        f"{_SQ}/compressed_tensors, 0.5.23", dtypes=("int4",), scales=("F32",)),
    Gap("ModelOpt's methods are not in its list for ROCm",
        f"{_SQ}/__init__.py, 0.5.23; run", chips=AMD, dtypes=("fp8", "nvfp4")),
    Gap("INT8 has a kernel on CUDA only, and B200 was not read", f"{_SQ}/compressed_tensors, 0.5.23",
        dtypes=("int8",)),
    Gap("NVFP4 is switched off for its MLA drafter class",
        "sglang/srt/models/kimi_k25_eagle3.py, 0.5.23", dtypes=("nvfp4",), mla=True),
    Gap("MXFP4 beside FP8 activations exists for experts only",
        f"{_SQ}/quark/quark.py, 0.5.23", dtypes=("mxfp4",)),
)  # fmt: skip
