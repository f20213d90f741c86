"""How many rows a head is tried with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftconv.conversion.pruning.head_rows import BLOCK
from draftconv.search.heads import SIZES, sizes


def test_powers_of_two_from_half_of_the_rows_down() -> None:
    assert sizes(163_840, BLOCK) == (65_536, 32_768, 16_384, 8_192)
    assert sizes(2_048, BLOCK) == (1_024, 512, 256, 128)
    assert sizes(163_840, 3 * BLOCK) == (65_472, 32_640, 16_320, 8_064)


def test_a_head_that_is_small_already_has_none() -> None:
    assert sizes(BLOCK, BLOCK) == sizes(127, BLOCK) == ()
    assert sizes(128, BLOCK) == (64,)


@given(st.integers(1, 1 << 20), st.integers(1, 16))
def test_every_device_gets_a_multiple_and_nothing_is_above_half(rows: int, devices: int) -> None:
    tried = sizes(rows, BLOCK * devices)
    assert len(tried) <= SIZES
    assert list(tried) == sorted({*tried}, reverse=True)
    assert all(0 < size <= rows // 2 and size % (BLOCK * devices) == 0 for size in tried)
