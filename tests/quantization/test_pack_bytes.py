"""Nibbles in bytes: against plain Python, there and back, along either axis."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftconv.errors import UsageError
from draftconv.quantization import pack_bytes


@given(st.lists(st.tuples(st.integers(-8, 7), st.integers(-8, 7)), min_size=1, max_size=9))
def test_the_first_of_two_is_the_low_nibble(couples: list[tuple[int, int]]) -> None:
    flat = torch.tensor(couples, dtype=torch.int8).flatten()
    packed = pack_bytes.pack(flat, 0)
    assert packed.tolist() == [(a & 0xF) | (b & 0xF) << 4 for a, b in couples]
    assert torch.equal(pack_bytes.unpack(packed, 0, signed=True), flat)
    assert pack_bytes.unpack(packed, 0, signed=False).tolist() == [code & 0xF for pair in couples for code in pair]


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_along_either_axis(axis: int) -> None:
    qvalues = torch.randint(-8, 8, (6, 10), dtype=torch.int8)
    packed = pack_bytes.pack(qvalues, axis)
    assert packed.is_contiguous()
    assert packed.shape == ((3, 10) if axis in (0, -2) else (6, 5))
    if axis in (0, -2):
        assert packed[1, 4].item() == (int(qvalues[2, 4]) & 0xF) | (int(qvalues[3, 4]) & 0xF) << 4
    assert torch.equal(pack_bytes.unpack(packed, axis, signed=True), qvalues)


def test_an_odd_axis_is_refused() -> None:
    with pytest.raises(UsageError, match="3 quantized values do not fill bytes"):
        pack_bytes.pack(torch.zeros(3, 4, dtype=torch.int8), 0)
