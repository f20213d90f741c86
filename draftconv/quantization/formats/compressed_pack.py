"""compressed-tensors `pack-quantized`: integers in 32-bit words along the inputs.

A word holds eight INT4 values as value + 8, or four INT8 values as value + 128, the first in the
lowest bits. What activations become is told in config.json alone: the tensors stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftconv.errors import BadCheckpoint, Refused
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
from draftconv.quantization.pack_int32 import OFFSET, pack, unpack
from draftconv.quantization.scheme import DTYPES, InputScheme, Scheme, WeightDtype


class CompressedPack(CompressedTensors):
    """INT4 and INT8 for vLLM everywhere and SGLang on NVIDIA."""

    id = "compressed-pack"
    title = "compressed-tensors pack-quantized"
    source = "compressed-tensors 0.20.0 compressors/pack_quantized/{base,helpers}.py, run"
    layout = "pack-quantized"
    holds = frozenset({("int4", "channel"), ("int4", "group"), ("int8", "channel"), ("int8", "group")})
    inputs = frozenset({None, InputScheme("int8", "token", True), InputScheme("fp8", "token", True)})

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        outputs, inputs = shape
        per_word = _values_per_word(scheme.weights.dtype)
        check_shape(self, shape, scheme, inputs=per_word)
        return (
            StoredTensor("weight_packed", "I32", (outputs, inputs // per_word)),
            StoredTensor(
                "weight_scale", scale_dtype(self, scheme, dtype), (outputs, inputs // (scheme.weights.group or inputs))
            ),
            StoredTensor("weight_shape", "I64", (2,)),
        )

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        check_style(self, style)
        check_weight(self, weight)
        qvalues = weight.quantized.qvalues
        return {
            "weight_packed": _pack(qvalues, weight.quantized.dtype),
            "weight_scale": scale_of(self, weight),
            "weight_shape": torch.tensor(qvalues.shape, dtype=torch.int64),
        }

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        tensors = self.tensors(stored, "weight_packed", "weight_scale", "weight_shape")
        packed = tensors.get("weight_packed", ("I32",), None, None)
        per_word = _values_per_word(declared.dtype)
        shape = (packed.shape[0], packed.shape[1] * per_word)
        if (weight_shape := tensors.optional("weight_shape", ("I64",), 2)) is not None:
            _check_weight_shape(weight_shape, shape, per_word)
        scale = self.scale(tensors, declared, shape)
        qvalues = _unpack(packed, declared.dtype)
        return Weight(quantized(declared.dtype, qvalues, scale), self.weight_dtype(scale, declared.dtype, dtype))


def _values_per_word(dtype: WeightDtype) -> int:
    return 32 // DTYPES[dtype].bits


def _check_weight_shape(weight_shape: Tensor, shape: tuple[int, int], per_word: int) -> None:
    """Raises BadCheckpoint when `weight_shape` is another than the words have, Refused when the last is padded."""
    outputs, inputs = (int(size) for size in weight_shape)
    if outputs == shape[0] and shape[1] - per_word < inputs < shape[1]:
        raise Refused(
            f"weight_shape says {inputs} inputs, which end inside a word of {per_word} quantized values",
            why="no engine has kernels for such a weight",
        )
    if (outputs, inputs) != shape:
        raise BadCheckpoint(
            f"weight_shape says [{outputs}, {inputs}], but weight_packed holds {list(shape)}",
            why="readers disagree on which of the two they believe",
        )


def _pack(qvalues: Tensor, dtype: WeightDtype) -> Tensor:
    if dtype == "int4":
        return pack(qvalues, "order").bitwise_xor_(OFFSET)
    return qvalues.contiguous().bitwise_xor(-128).view(torch.int32)


def _unpack(words: Tensor, dtype: WeightDtype) -> Tensor:
    if dtype == "int4":
        return unpack(words ^ OFFSET, "order")
    return words.contiguous().view(torch.int8) ^ -128


compressed_pack = CompressedPack()
