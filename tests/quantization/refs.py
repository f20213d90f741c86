"""Tensors as references to bytes in memory, as an opened checkpoint holds them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftconv.checkpoint import MemoryFile, TensorRef
from draftconv.quantization.formats.base import StoredTensor
from draftconv.quantization.formats.module_tensors import SPELLED, TORCH


def ref_of(name: str, tensor: Tensor) -> TensorRef:
    """A tensor in a file of its own."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return TensorRef(name, SPELLED[tensor.dtype], tuple(tensor.shape), MemoryFile(name, data), 0, len(data))


def refs_of(module: str, tensors: Mapping[str, Tensor]) -> dict[str, TensorRef]:
    """The tensors of one module by suffix."""
    return {suffix: ref_of(f"{module}.{suffix}", tensor) for suffix, tensor in tensors.items()}


def loaded(parts: Mapping[str, bytes | memoryview], foretold: tuple[StoredTensor, ...]) -> dict[str, Tensor]:
    """What a computation yielded, in the dtypes and shapes that were foretold; fails where lengths differ."""
    assert list(parts) == [part.suffix for part in foretold]
    return {
        part.suffix: torch.frombuffer(bytearray(parts[part.suffix]), dtype=TORCH[part.dtype]).reshape(part.shape)
        for part in foretold
    }
