"""NVFP4 as ModelOpt stores it, for Blackwell."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization import pack_bytes
from draftconv.quantization.formats.base import Declared, StoredTensor, Weight
from draftconv.quantization.formats.modelopt_config import NVFP4_STATIC, Algorithm, ModelOpt
from draftconv.quantization.formats.module_tensors import ModuleTensors, calibrated
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import DTYPES, Scheme

GROUP = DTYPES["nvfp4"].group or 0

_FOUR = {"dynamic": False, "num_bits": 4, "type": "float"}

ALGORITHMS = {"NVFP4": Algorithm("nvfp4", "group", NVFP4_STATIC, {}, _FOUR, _FOUR, True, GROUP)}


class ModelOptNvfp4(ModelOpt):
    """weight U8 [O, I/2], weight_scale F8_E4M3 [O, I/16], weight_scale_2 F32 [], input_scale F32 [].

    Two neighbours along inputs share a byte, the even one in the low nibble. input_scale is
    the activations' largest magnitude over 6 * 448.

    Engines join q, k and v, gate and up: vLLM and SGLang under the largest weight_scale_2
    without rescaling, TensorRT-LLM asserts that they are equal. Give fused weights one
    `whole` when they are quantized, and one input_scale.
    """

    id = "modelopt-nvfp4"
    title = "ModelOpt NVFP4"
    source = "nvidia-modelopt 0.47 torch/quantization/qtensor/nvfp4_tensor.py, run; torch/export/quant_utils.py, read"
    holds = frozenset({("nvfp4", "group")})
    inputs = frozenset({NVFP4_STATIC})
    algorithms = ALGORITHMS

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        del dtype
        if (scheme.weights.dtype, scheme.weights.granularity) not in self.holds or scheme.inputs not in self.inputs:
            raise Refused(f"{self.title} has no {scheme}", cure=f"known: NVFP4 weights with activations {NVFP4_STATIC}")
        outputs, inputs = shape
        _check_inputs(inputs)
        return (
            StoredTensor("weight", "U8", (outputs, inputs // 2)),
            StoredTensor("weight_scale", "F8_E4M3", (outputs, inputs // GROUP)),
            StoredTensor("weight_scale_2", "F32", ()),
            StoredTensor("input_scale", "F32", ()),
        )

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        self.written(style)
        _check_inputs(weight.quantized.qvalues.shape[1])
        return {
            "weight": pack_bytes.pack(weight.quantized.qvalues, 1),
            "weight_scale": weight.quantized.scale,
            "weight_scale_2": weight.quantized.unit.float().reshape(()),
            "input_scale": calibrated(weight.input_scale, self.title),
        }

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        del declared
        tensors = ModuleTensors(self.title, stored)
        tensors.only("weight", "weight_scale", "weight_scale_2", "input_scale")
        packed = tensors.get("weight", ("U8",), None, None)
        outputs, half = packed.shape
        if 2 * half % GROUP:
            raise BadCheckpoint(
                f"weight has {2 * half} inputs, no multiple of {GROUP}",
                why="an NVFP4 scale covers so many",
                cure="export the checkpoint again",
            )
        scale = tensors.get("weight_scale", ("F8_E4M3",), outputs, 2 * half // GROUP)
        quantized = RoundedWeight(
            "nvfp4", pack_bytes.unpack(packed, 1, signed=False), scale, tensors.scalar("weight_scale_2")
        )
        return Weight(quantized, dtype, tensors.scalar("input_scale"))


MODELOPT_NVFP4 = ModelOptNvfp4()


def _check_inputs(inputs: int) -> None:
    if inputs % GROUP:
        raise Refused(
            f"{inputs} inputs are no multiple of {GROUP}",
            why="an NVFP4 scale covers so many",
            cure="exclude the tensor",
        )
