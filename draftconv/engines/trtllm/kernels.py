"""Stored forms that TensorRT-LLM has a kernel for, and why it has none for others. Nothing here was run."""

from __future__ import annotations

from draftconv.engines.hardware import NVIDIA
from draftconv.engines.kernels import A16, FP8_TENSOR, FP8_TOKEN, GROUP, INT8_TOKEN, NVFP4_BLOCK, Gap, Kernel

_TRT = "tensorrt_llm/_torch/modules/linear.py, 1.3.0rc at 00bbf71e"

KERNELS: tuple[Kernel, ...] = (
    Kernel(("sm90",), "modelopt-awq", (GROUP,), None, f"{A16} (fine-grained INT4 GEMM)", _TRT,
           style="plain", groups=(64, 128)),
    Kernel(("sm100",), "modelopt-awq", (GROUP,), None, f"{A16} (fine-grained INT4 GEMM)", _TRT,
           style="plain", groups=(64, 128),
           notes=("allowed by the code of main, not in the documented hardware table: prove it on your machine",)),
    Kernel(("sm90",), "modelopt-awq", (GROUP,), FP8_TENSOR,
           "4-bit storage, FP8 arithmetic, activations under a fixed scale (fine-grained INT4 GEMM)", _TRT,
           style="plain", groups=(128,)),
    Kernel(("sm100",), "modelopt-awq", (GROUP,), FP8_TENSOR,
           "4-bit storage, FP8 arithmetic, activations under a fixed scale (fine-grained INT4 GEMM)", _TRT,
           style="plain", groups=(128,),
           notes=("allowed by the code of main, not in the documented hardware table: prove it on your machine",)),
    Kernel(NVIDIA, "modelopt-fp8", (("fp8", "tensor"),), FP8_TENSOR,
           "FP8 arithmetic, activations under a fixed scale", _TRT, style="plain"),
    Kernel(("sm100",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           "FP4 arithmetic, weights and activations", _TRT, style="plain"),
)  # fmt: skip

GAPS: tuple[Gap, ...] = (
    Gap("quant_method quark has no branch there, so packed weights are taken for plain ones",
        "tensorrt_llm/_torch/model_config.py, 1.3.0rc at 008e0af8", formats=("quark-int4", "quark-mxfp4")),
    Gap("there is no INT4 times INT8 kernel: its W4A8 is INT4 with static FP8 activations",
        _TRT, dtypes=("int4",), inputs=(INT8_TOKEN,)),
    Gap("its W4A8 takes activations under a fixed FP8 scale only", _TRT, dtypes=("int4",),
        inputs=(FP8_TOKEN,)),
    Gap("its AWQ kernels need a scale per 64 or 128 inputs", _TRT, dtypes=("int4",), pers=("channel",)),
    Gap("FP8 with a scale per row is documented for Hopper only, and the scales that compressed-tensors "
        "writes have another shape there", "docs/source/features/quantization.md at f53fb4c8", dtypes=("fp8",),
        pers=("channel",)),
    Gap("NVFP4 needs Blackwell", _TRT, chips=("sm90",), dtypes=("nvfp4",)),
    Gap("MXFP4 beside FP8 activations is read in ModelOpt's spelling only, which was never produced on a CPU",
        _TRT, dtypes=("mxfp4",)),
    Gap("per-channel INT8 raises `unsupported quant mode`", _TRT, dtypes=("int8",)),
)  # fmt: skip
