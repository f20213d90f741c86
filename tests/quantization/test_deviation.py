"""How far a weight went: figures worked out by hand, however the rows come by."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from draftconv.quantization.deviation import Deviation, Sum, Total, total

WEIGHT = torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 10.0]])
NEAR = torch.tensor([[3.0, 4.5], [6.0, 7.0], [0.0, 10.0]])


def told(*blocks: slice) -> Deviation:
    total = Sum()
    for block in blocks:
        total.add(WEIGHT[block], NEAR[block].clone())
    return total.deviation()


def test_by_hand() -> None:
    found = told(slice(3))
    assert found.relative == pytest.approx(math.sqrt((0.25 + 1) / (25 + 100 + 100)))
    assert found.row == 0
    assert found.worst == pytest.approx(0.1)
    assert found.typical == pytest.approx(0.1)
    assert found.largest == 1.0


def test_rows_may_come_in_blocks() -> None:
    assert told(slice(1), slice(1, 3)) == told(slice(3))


def test_the_worst_row_is_counted_through_blocks() -> None:
    total = Sum()
    total.add(WEIGHT[:2], WEIGHT[:2].clone())
    total.add(WEIGHT[2:], WEIGHT[2:] * 0.5)
    found = total.deviation()
    assert found.relative == pytest.approx(5 / 15)
    assert replace(found, relative=0.0) == Deviation(0.0, worst=0.5, row=2, typical=0.0, largest=5.0, norm=15.0)


def test_a_weight_of_zeros_has_no_error() -> None:
    total = Sum()
    total.add(torch.zeros(2, 3), torch.zeros(2, 3))
    assert total.deviation() == Deviation(0.0, 0.0, 0, 0.0, 0.0, 0.0)


def test_several_weights_count_by_their_size() -> None:
    small = Deviation(relative=0.5, worst=0.9, row=1, typical=0.4, largest=0.1, norm=3.0)
    large = Deviation(relative=0.1, worst=0.2, row=5, typical=0.1, largest=0.7, norm=4.0)
    found = total({"small": small, "large": large})
    assert found.relative == pytest.approx(math.sqrt(1.5**2 + 0.4**2) / 5)
    assert replace(found, relative=0.0) == Total(0.0, worst=0.9, name="small", largest=0.7)


def test_the_total_of_the_parts_is_that_of_the_whole() -> None:
    parts = {f"rows {at}": told(slice(at, at + 1)) for at in range(3)}
    assert total(parts).relative == pytest.approx(told(slice(3)).relative)
