"""FP8 as ModelOpt stores it: a scale per tensor and a calibrated one, or a scale per output row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftconv.errors import Refused
from draftconv.quantization.formats.base import Declared, StoredTensor, Weight
from draftconv.quantization.formats.modelopt_config import FP8_STATIC, FP8_TOKEN, Algorithm, ModelOpt
from draftconv.quantization.formats.module_tensors import FLOAT, ModuleTensors, calibrated
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import Scheme

_STATIC = {"dynamic": False, "num_bits": 8, "type": "float"}

ALGORITHMS = {
    "FP8": Algorithm("fp8", "tensor", FP8_STATIC, {}, _STATIC, _STATIC, True),
    "FP8_PER_CHANNEL_PER_TOKEN": Algorithm(
        "fp8", "channel", FP8_TOKEN, {}, {**_STATIC, "strategy": "channel"}, _STATIC, False
    ),
}


class ModelOptFp8(ModelOpt):
    """weight F8_E4M3 [O, I]; per tensor weight_scale F32 [] and input_scale F32 [], per channel weight_scale F32 [O].

    Engines join q, k and v, gate and up, under the largest scales of each group, and may round
    quantized values again: give fused weights one scale (`whole` of `quantize`) and one input_scale.
    """

    id = "modelopt-fp8"
    title = "ModelOpt FP8"
    source = "nvidia-modelopt 0.47 torch/export/quant_utils.py, run"
    holds = frozenset({("fp8", "tensor"), ("fp8", "channel")})
    inputs = frozenset({FP8_STATIC, FP8_TOKEN})
    algorithms = ALGORITHMS

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        del dtype
        weight = StoredTensor("weight", "F8_E4M3", shape)
        match scheme.weights.dtype, scheme.weights.granularity, scheme.inputs:
            case "fp8", "tensor", inputs if inputs == FP8_STATIC:
                return weight, StoredTensor("weight_scale", "F32", ()), StoredTensor("input_scale", "F32", ())
            case "fp8", "channel", inputs if inputs == FP8_TOKEN:
                return weight, StoredTensor("weight_scale", "F32", shape[:1])
        raise Refused(
            f"{self.title} has no {scheme}",
            cure=f"known: FP8 per tensor with activations {FP8_STATIC}; per channel with {FP8_TOKEN}",
        )

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        self.written(style)
        qvalues_OI, scale = weight.quantized.qvalues, weight.quantized.scale.float()
        if weight.granularity != "tensor" and weight.input_scale is None and len(scale) == len(qvalues_OI):
            return {"weight": qvalues_OI, "weight_scale": scale.flatten()}
        if scale.numel() != 1:
            raise Refused(
                f"{self.title} has no static activations beside scales per channel",
                cure="leave the scale of activations out",
            )
        return {
            "weight": qvalues_OI,
            "weight_scale": scale.reshape(()),
            "input_scale": calibrated(weight.input_scale, self.title),
        }

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        tensors = ModuleTensors(self.title, stored)
        qvalues_OI = tensors.get("weight", ("F8_E4M3",), None, None)
        unit = torch.ones((), device=qvalues_OI.device)
        if declared.granularity == "tensor" or (declared.granularity is None and "input_scale" in stored):
            tensors.only("weight", "weight_scale", "input_scale")
            scale = tensors.scalar("weight_scale").reshape(1, 1)
            return Weight(
                RoundedWeight("fp8", qvalues_OI, scale, unit),
                dtype,
                tensors.scalar("input_scale"),
                granularity="tensor",
            )
        tensors.only("weight", "weight_scale")
        scale = tensors.get("weight_scale", FLOAT, len(qvalues_OI)).float()[:, None]
        return Weight(RoundedWeight("fp8", qvalues_OI, scale, unit), dtype, granularity="channel")


MODELOPT_FP8 = ModelOptFp8()
