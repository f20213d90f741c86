"""MXFP4 with calibrated FP8 activations as amd-quark stores it, and vLLM runs it on MI350."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization import pack_bytes
from draftconv.quantization.formats import quark_config
from draftconv.quantization.formats.base import Declaration, Declared, Format, StoredTensor, Weight
from draftconv.quantization.formats.module_tensors import ModuleTensors, calibrated
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import DTYPES, InputScheme, Scheme

GROUP = DTYPES["mxfp4"].group or 0

WEIGHT: quark_config.Spec = {
    **quark_config.SPEC, "dtype": "fp4", "qscheme": "per_group", "ch_axis": -1, "group_size": GROUP, "symmetric": None,
    "observer_cls": "PerBlockMXObserver", "scale_format": "e8m0", "scale_calculation_mode": "even",
}  # fmt: skip


class QuarkMxfp4(Format):
    """weight U8 [O, I/2], weight_scale U8 [O, I/32], input_scale F32 [].

    Two neighbours along inputs share a byte, the even one in the low nibble; a scale is the
    exponent of a power of two, plus 127. By default Quark rounds input_scale to the dtype of the
    weight; here it is F32, its `scale_type` float32, which is also what vLLM makes of it.

    A negative weight that rounds to zero is value 8 here, -0, and value 0 in Quark, which has no negative
    zero; a block of zeros has scale 1 here and 2**-126 in Quark. The values are the same, and both are read.
    """

    id = "quark-mxfp4"
    title = "Quark MXFP4"
    source = (
        "amd-quark 0.13 torch/utils/pack.py, scheme mxfp4_fp8, run; "
        "vLLM 0.33.0 model_executor/layers/quantization/quark/schemes, read"
    )
    holds = frozenset({("mxfp4", "group")})
    inputs = frozenset({InputScheme("fp8", "tensor", False)})
    styles = ("reorder",)

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        del dtype
        if (scheme.weights.dtype, scheme.weights.granularity) not in self.holds or scheme.inputs not in self.inputs:
            raise Refused(
                f"{self.title} has no {scheme}",
                cure="known: MXFP4 weights with FP8 activations per tensor, static",
            )
        outputs, inputs = shape
        _check_inputs(inputs)
        return (
            StoredTensor("weight", "U8", (outputs, inputs // 2)),
            StoredTensor("weight_scale", "U8", (outputs, inputs // GROUP)),
            StoredTensor("input_scale", "F32", ()),
        )

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        self.written(style)
        _check_inputs(weight.quantized.qvalues.shape[1])
        return {
            "weight": pack_bytes.pack(weight.quantized.qvalues, 1),
            "weight_scale": weight.quantized.scale,
            "input_scale": calibrated(weight.input_scale, self.title),
        }

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        tensors = ModuleTensors(self.title, stored)
        tensors.only("weight", "weight_scale", "input_scale")
        packed = tensors.get("weight", ("U8",), None, None)
        outputs, half = packed.shape
        if 2 * half % GROUP or declared.group not in (None, GROUP):
            raise BadCheckpoint(
                f"weight has {2 * half} inputs, in groups of {declared.group or GROUP}",
                why=f"{self.title} has a scale for every {GROUP} inputs",
                cure="export the checkpoint again",
            )
        scale = tensors.get("weight_scale", ("U8",), outputs, 2 * half // GROUP)
        if (scale == 255).any():
            raise BadCheckpoint(
                "weight_scale holds the exponent 255, which is no number",
                why="all 32 weights under it are lost",
                cure="export the checkpoint again",
            )
        qvalues = pack_bytes.unpack(packed, 1, signed=False)
        unit = torch.ones((), device=qvalues.device)
        return Weight(RoundedWeight("mxfp4", qvalues, scale, unit), dtype, tensors.scalar("input_scale"))

    def declare(self, declared: Declared, modules: Sequence[str]) -> Declaration:
        del modules
        if (declared.dtype, declared.granularity) not in self.holds or declared.inputs not in self.inputs:
            raise Refused(f"{self.title} cannot declare {declared.dtype} weights with {declared.inputs} activations")
        return quark_config.write(WEIGHT, declared.inputs, declared.ignore, self.written(declared.style))

    def read(self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]) -> Declared | None:
        del sidecars
        spec = quark_config.weight_spec(config)
        if spec is None or (spec.raw("dtype"), spec.raw("scale_format")) != (WEIGHT["dtype"], WEIGHT["scale_format"]):
            return None
        if not quark_config.tells(spec, WEIGHT):
            raise Refused(
                f"{spec.where}: {quark_config.summary(spec)}",
                why=f"MXFP4 weights have one power of two for every {GROUP} inputs, fixed beforehand",
                cure="quantize the 16-bit drafter with recipe mxfp4",
            )
        quark_config.pack_method(config)
        inputs = quark_config.inputs(config, self.inputs)
        return Declared("mxfp4", "group", GROUP, inputs, quark_config.excluded(config), self.styles[0])


QUARK_MXFP4 = QuarkMxfp4()


def _check_inputs(inputs: int) -> None:
    if inputs % GROUP:
        raise Refused(
            f"{inputs} inputs are no multiple of {GROUP}",
            why="an MXFP4 scale covers so many",
            cure="exclude the tensor",
        )
