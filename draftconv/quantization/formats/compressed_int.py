"""compressed-tensors `int-quantized`: one INT4 or INT8 value to a byte.

The one form whose INT4 weights vLLM multiplies with INT8 activations on any CPU (0.32.0, run);
on GPUs only INT8 weights have kernels. INT4 takes as much room as INT8 here.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from draftconv.quantization.formats.base import Declared, StoredTensor, Weight
from draftconv.quantization.formats.checks import (
    check_range,
    check_shape,
    check_style,
    check_weight,
    quantized,
    scale_dtype,
    scale_of,
)
from draftconv.quantization.formats.compressed_tensors import CompressedTensors
from draftconv.quantization.scheme import InputScheme, Scheme


class CompressedInt(CompressedTensors):
    """Integers for vLLM's CPU kernels, and INT8 for its GPU kernels."""

    id = "compressed-int"
    title = "compressed-tensors int-quantized"
    source = "compressed-tensors 0.20.0 compressors/naive_quantized/base.py, run"
    layout = "int-quantized"
    holds = frozenset({("int4", "channel"), ("int4", "group"), ("int8", "channel"), ("int8", "group")})
    inputs = frozenset({None, InputScheme("int8", "token", True), InputScheme("fp8", "token", True)})
    wide = frozenset({"int8"})

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        check_shape(self, shape, scheme)
        groups = shape[1] // (scheme.weights.group or shape[1])
        return (
            StoredTensor("weight", "I8", shape),
            StoredTensor("weight_scale", scale_dtype(self, scheme, dtype, self.wide), (shape[0], groups)),
        )

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        check_style(self, style)
        check_weight(self, weight)
        return {"weight": weight.quantized.qvalues, "weight_scale": scale_of(self, weight, self.wide)}

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        tensors = self.tensors(stored, "weight", "weight_scale")
        qvalues = tensors.get("weight", ("I8",), None, None)
        check_range(qvalues, declared.dtype)
        scale = self.scale(tensors, declared, (qvalues.shape[0], qvalues.shape[1]))
        return Weight(quantized(declared.dtype, qvalues, scale), self.weight_dtype(scale, declared.dtype, dtype))


compressed_int = CompressedInt()
