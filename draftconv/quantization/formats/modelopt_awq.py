"""INT4 per group as ModelOpt stores it and TensorRT-LLM's AWQ kernels read it. Not run in TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from draftconv.checkpoint import show
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.quantization import pack_bytes
from draftconv.quantization.formats.base import Declared, StoredTensor, Weight
from draftconv.quantization.formats.modelopt_config import FP8_STATIC, Algorithm, ModelOpt
from draftconv.quantization.formats.module_tensors import FLOAT, SPELLED, TORCH, ModuleTensors
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scales import FP8_MAX
from draftconv.quantization.scheme import Scheme

OVERFLOW = 464.0
"""From here on E4M3 has no finite value to round to."""

_KEYS = {"has_zero_point": False, "pre_quant_scale": True}

ALGORITHMS = {
    "W4A16_AWQ": Algorithm(
        "int4", "group", None, _KEYS, {"dynamic": False, "num_bits": 4, "type": "int"}, None, False
    ),
    "W4A8_AWQ": Algorithm(
        "int4", "group", FP8_STATIC, _KEYS,
        {"dynamic": False, "num_bits": 4, "type": "float"}, {"dynamic": False, "num_bits": 8, "type": "float"}, False,
    ),
}  # fmt: skip


class ModelOptAwq(ModelOpt):
    """weight U8 [O/2, I], weight_scale F32 [O, I/g], pre_quant_scale [I]; W4A8: weight_scale_2, input_scale F32 [].

    Two neighbouring *outputs* share a byte, the even one in the low nibble. pre_quant_scale
    has the dtype of the drafter and is written always: ModelOpt's header announces it even
    where its exporter leaves it out, and TensorRT-LLM stops on o_proj and down_proj without it.
    weight_scale_2 is no factor of the weight: the kernel divides weight_scale by it, so that
    quantized values times scales fit E4M3.

    What TensorRT-LLM joins, q, k and v, and gate and up, the caller has to hand over alike: for
    W4A8 one input_scale, one `Weight.fp8_scale` (the largest `fp8_scale` of the group) and one
    pre_quant_scale; for W4A16 no pre_quant_scale, which is dropped there without a word.
    """

    id = "modelopt-awq"
    title = "ModelOpt AWQ"
    source = (
        "nvidia-modelopt 0.47 torch/export/quant_utils.py, run; "
        "TensorRT-LLM _torch/modules/linear.py, 1.3.0rc at 00bbf71e, read"
    )
    holds = frozenset({("int4", "group")})
    inputs = frozenset({None, FP8_STATIC})
    algorithms = ALGORITHMS

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        outputs, inputs = shape
        if (scheme.weights.dtype, scheme.weights.granularity) not in self.holds or scheme.inputs not in self.inputs:
            raise Refused(
                f"{self.title} has no {scheme}",
                why="it holds INT4 weights with a scale per group of inputs",
                cure="scales per channel can be repeated over groups of 128",
            )
        group = scheme.weights.group or inputs
        _check_shape(shape, group)
        parts = (
            StoredTensor("weight", "U8", (outputs // 2, inputs)),
            StoredTensor("weight_scale", "F32", (outputs, inputs // group)),
            StoredTensor("pre_quant_scale", dtype, (inputs,)),
        )
        if scheme.inputs is None:
            return parts
        return *parts, StoredTensor("weight_scale_2", "F32", ()), StoredTensor("input_scale", "F32", ())

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        self.written(style)
        qvalues_OI, scale_OG = weight.quantized.qvalues, weight.quantized.scale.float()
        outputs, inputs = qvalues_OI.shape
        _check_shape((outputs, inputs), inputs // scale_OG.shape[1])
        smoothing_I = weight.pre_quant_scale
        if smoothing_I is None:
            smoothing_I = torch.ones(inputs, device=qvalues_OI.device)
        parts = {
            "weight": pack_bytes.pack(qvalues_OI, 0),
            "weight_scale": scale_OG,
            "pre_quant_scale": smoothing_I.to(TORCH[weight.dtype]),
        }
        if weight.input_scale is None:
            return parts
        return parts | {
            "weight_scale_2": _shared_fp8_scale(weight),
            "input_scale": weight.input_scale.float().reshape(()),
        }

    def resolve(self, stored: Mapping[str, Tensor], declared: Declared) -> Declared:
        tensors = ModuleTensors(self.title, stored)
        static = declared.inputs is not None
        tensors.only(
            "weight", "weight_scale", "pre_quant_scale", *(("weight_scale_2", "input_scale") if static else ())
        )
        half, inputs = tensors.get("weight", ("U8", "I8"), None, None).shape
        groups = tensors.get("weight_scale", FLOAT, 2 * half, None).shape[1]
        if inputs % groups or declared.group not in (None, inputs // groups):
            raise BadCheckpoint(
                f"weight_scale [{2 * half}, {groups}] is not one scale for every {declared.group or 'few'} "
                f"of {inputs} inputs",
                why="read as declared, weights would be multiplied by scales of others",
                cure="correct group_size in hf_quant_config.json and config.json",
            )
        tensors.optional("pre_quant_scale", (*FLOAT, "F64"), inputs)
        return replace(declared, granularity="group", group=inputs // groups)

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        self.resolve(stored, declared)
        tensors = ModuleTensors(self.title, stored)
        packed = stored["weight"].view(torch.uint8)
        scale_OG = stored["weight_scale"].float()
        smoothing_I = stored.get("pre_quant_scale")
        if smoothing_I is not None:
            dtype = SPELLED[smoothing_I.dtype]
            smoothing_I = None if (smoothing_I == 1).all() else smoothing_I
        quantized = RoundedWeight(
            "int4", pack_bytes.unpack(packed, 0, signed=True), scale_OG, torch.ones((), device=packed.device)
        )
        if declared.inputs is None:
            return Weight(quantized, dtype, pre_quant_scale=smoothing_I)
        return Weight(quantized, dtype, tensors.scalar("input_scale"), smoothing_I, tensors.scalar("weight_scale_2"))


MODELOPT_AWQ = ModelOptAwq()


def fp8_scale(quantized: RoundedWeight) -> Tensor:
    """The smallest weight_scale_2 that an int4 weight may have, float32 []: its largest magnitude over 448.

    After rule max/7 it is bit for bit ModelOpt's, the largest magnitude of the float weight over 448.
    """
    qvalues_OI, scale_OG = quantized.qvalues, quantized.scale
    top_OG = torch.unflatten(qvalues_OI, 1, (scale_OG.shape[1], -1)).abs().amax(-1)
    # In float64 value * scale is exact, and 7 * scale / 448 too.
    return ((top_OG.double() * scale_OG.double()).amax() / FP8_MAX).float()


def _shared_fp8_scale(weight: Weight) -> Tensor:
    least = fp8_scale(weight.quantized)
    if weight.fp8_scale is None:
        return torch.where(least > 0, least, 1)
    if not least * FP8_MAX < OVERFLOW * weight.fp8_scale:
        raise UsageError(
            f"an FP8 scale of {show(weight.fp8_scale.item())} is too small for a weight that needs {least.item()}",
            why="its largest values would not fit E4M3",
            cure="give fused weights the largest of their scales",
        )
    return weight.fp8_scale.float().reshape(())


def _check_shape(shape: tuple[int, int], group: int) -> None:
    """Raises Refused for a weight that has no bytes."""
    outputs, inputs = shape
    if outputs % 2:
        raise Refused(
            f"ModelOpt AWQ cannot hold a weight of {outputs} outputs",
            why="it packs two outputs into a byte",
            cure="exclude the tensor",
        )
    if inputs % group:
        raise Refused(
            f"{inputs} inputs are no multiple of the group of {group}",
            why="all groups of a row have one size",
            cure="exclude the tensor",
        )
