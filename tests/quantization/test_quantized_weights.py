"""Quantized weights of an opened drafter: which modules have them, and their tensors in memory."""

from __future__ import annotations

import pytest
import torch

from draftconv.quantization.quantized_weights import quantized_modules, read
from tests import quantized
from tests.quantization.refs import ref_of

NAME = "llama-eagle3-reduced"


def test_a_plain_drafter_has_no_quantized_modules() -> None:
    assert list(quantized_modules(quantized.read(quantized.source(NAME), NAME))) == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(-3, 3, dtype=torch.int8).reshape(2, 3),
        torch.arange(6, dtype=torch.int32),
        torch.arange(6, dtype=torch.int64),
        torch.arange(6, dtype=torch.uint8),
        torch.tensor([1.0, -448.0]).to(torch.float8_e4m3fn),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.tensor(2.5),
        torch.empty(0, 4, dtype=torch.int8),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
)
def test_any_tensor_of_a_weight_is_read_as_it_is(tensor: torch.Tensor) -> None:
    found = read(ref_of("x", tensor))
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found.double(), tensor.double())
