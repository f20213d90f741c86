"""Words of nibbles: against plain Python, there and back, and told apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftconv.errors import UsageError
from draftconv.quantization.pack_int32 import OFFSET, Order, pack, unpack
from tests.quantization import plain

LITERAL: dict[Order, tuple[int, ...]] = {"order": (0, 1, 2, 3, 4, 5, 6, 7), "reorder": (0, 2, 4, 6, 1, 3, 5, 7)}
orders = pytest.mark.parametrize("order", LITERAL)
nibbles = st.integers(1, 4).flatmap(lambda n: st.lists(st.integers(-8, 7), min_size=8 * n, max_size=8 * n))


@orders
@given(qvalues=nibbles)
def test_words_are_those_of_the_formula(order: Order, qvalues: list[int]) -> None:
    words = pack(torch.tensor(qvalues, dtype=torch.int8), order)
    assert words.dtype == torch.int32
    assert words.tolist() == [plain.word(qvalues[at : at + 8], LITERAL[order]) for at in range(0, len(qvalues), 8)]


@orders
@given(qvalues=nibbles)
def test_there_and_back(order: Order, qvalues: list[int]) -> None:
    tensor = torch.tensor([qvalues, qvalues[::-1]], dtype=torch.int8)
    assert torch.equal(unpack(pack(tensor, order), order), tensor)


@orders
@given(words=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4))
def test_back_and_there(order: Order, words: list[int]) -> None:
    tensor = torch.tensor(words, dtype=torch.int32)
    assert torch.equal(pack(unpack(tensor, order), order), tensor)


def test_the_other_order_permutes() -> None:
    qvalues = torch.arange(-4, 4, dtype=torch.int8)
    assert unpack(pack(qvalues, "order"), "reorder").tolist() == [-4, 0, -3, 1, -2, 2, -1, 3]
    assert unpack(pack(qvalues, "reorder"), "order").tolist() == [-4, -2, 0, 2, -3, -1, 1, 3]


def test_unsigned_codes_and_one_known_word() -> None:
    qvalues = torch.tensor([-7, -2, 4, -6, 0, 5, -4, 1], dtype=torch.int8)
    assert pack(qvalues, "order").item() == 0x1C50A4E9
    assert pack(qvalues, "reorder").item() == 0x15AEC049
    assert pack(torch.full((8,), 15, dtype=torch.uint8), "order").item() == -1


def test_half_a_word_is_refused() -> None:
    with pytest.raises(UsageError, match="12 quantized values do not fill"):
        pack(torch.zeros(3, 12, dtype=torch.int8), "order")


@orders
@pytest.mark.parametrize("words", [1, (1 << 16) - 1, (1 << 16) + 1])
def test_blocks_meet_without_a_seam(order: Order, words: int) -> None:
    qvalues = (torch.arange(8 * words) * 7 % 16 - 8).to(torch.int8)
    packed = pack(qvalues, order)
    assert torch.equal(unpack(packed, order), qvalues)
    assert packed[-1].item() == plain.word(qvalues[-8:].tolist(), LITERAL[order])


@orders
def test_tensors_that_start_anywhere_and_lie_across(order: Order) -> None:
    qvalues = torch.arange(3 * 17, dtype=torch.int8).view(3, 17) % 16 - 8
    assert torch.equal(pack(qvalues[:, 1:], order), pack(qvalues[:, 1:].clone(), order))
    across = qvalues.T[:16, :].reshape(8, 6).T
    assert torch.equal(pack(across, order), pack(across.contiguous(), order))
    assert unpack(torch.zeros(0, 2, dtype=torch.int32), order).shape == (0, 16)
    assert pack(torch.zeros(2, 0, dtype=torch.int8), order).shape == (2, 0)


@given(qvalues=nibbles)
def test_the_offset_makes_codes_unsigned(qvalues: list[int]) -> None:
    tensor = torch.tensor(qvalues, dtype=torch.int8)
    assert torch.equal(pack(tensor, "order") ^ OFFSET, pack(tensor + 8, "order"))
