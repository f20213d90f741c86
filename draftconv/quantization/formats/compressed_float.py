"""compressed-tensors `float-quantized`: FP8 E4M3, per channel or per tensor.

Activations are rounded per token as they come, or under a static scale per tensor, which is
stored as `input_scale`. Engines hold every scale in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from draftconv.quantization.formats.base import Declared, StoredTensor, Weight
from draftconv.quantization.formats.checks import (
    check_shape,
    check_style,
    check_weight,
    quantized,
    scale_dtype,
    scale_of,
)
from draftconv.quantization.formats.compressed_tensors import CompressedTensors
from draftconv.quantization.formats.module_tensors import FLOAT
from draftconv.quantization.scheme import InputScheme, Scheme

STATIC = InputScheme("fp8", "tensor", False)


class CompressedFloat(CompressedTensors):
    """FP8 for vLLM and SGLang on every GPU that has it."""

    id = "compressed-float"
    title = "compressed-tensors float-quantized"
    source = (
        "compressed-tensors 0.20.0 compressors/naive_quantized/base.py, quantization/lifecycle/initialize.py, run; "
        "vLLM 0.32.0 compressed_tensors/schemes/compressed_tensors_{w8a8,w8a16}_fp8.py, read"
    )
    layout = "float-quantized"
    holds = frozenset({("fp8", "channel"), ("fp8", "tensor")})
    inputs = frozenset({None, InputScheme("fp8", "token", True), STATIC})
    wide = frozenset({"fp8"})

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        check_shape(self, shape, scheme)
        return (
            StoredTensor("weight", "F8_E4M3", shape),
            StoredTensor(
                "weight_scale",
                scale_dtype(self, scheme, dtype, self.wide),
                (1,) if scheme.weights.granularity == "tensor" else (shape[0], 1),
            ),
            *([StoredTensor("input_scale", "F32", (1,))] if scheme.inputs == STATIC else []),
        )

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        check_style(self, style)
        check_weight(self, weight, input_scale=True)
        scale = scale_of(self, weight, self.wide)
        tensors = {
            "weight": weight.quantized.qvalues,
            "weight_scale": scale.reshape(1) if scale.numel() == 1 else scale,
        }
        if weight.input_scale is not None:
            tensors["input_scale"] = weight.input_scale.reshape(1)
        return tensors

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        static = declared.inputs == STATIC
        tensors = self.tensors(stored, "weight", "weight_scale", *(["input_scale"] if static else []))
        qvalues = tensors.get("weight", ("F8_E4M3",), None, None)
        # Scales per channel have a second dimension; that tells when config.json does not.
        alone = declared.granularity is None and "weight_scale" in stored and stored["weight_scale"].ndim == 1
        if alone or declared.granularity == "tensor":
            scale = tensors.get("weight_scale", FLOAT, 1).reshape(1, 1)
        else:
            scale = self.scale(tensors, declared, (qvalues.shape[0], qvalues.shape[1]))
        return Weight(
            quantized(declared.dtype, qvalues, scale),
            self.weight_dtype(scale, declared.dtype, dtype),
            tensors.get("input_scale", FLOAT, 1).float().reshape(()) if static else None,
        )


compressed_float = CompressedFloat()
