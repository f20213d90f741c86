import numpy as np
import pytest
import torch

from draftconv.checkpoint import ByteCounter, MemoryFile, TensorRef, first_difference, scan
from draftconv.checkpoint.compare_values import Scan

TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
EVERY_FLOAT = pytest.mark.parametrize("dtype", TORCH)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of four BF16 values at a time, so that tensors have several blocks and a short last one."""
    monkeypatch.setattr("draftconv.checkpoint.compare_values.BLOCK", 24)


def ref(values: torch.Tensor, dtype: str) -> TensorRef:
    data = values.to(TORCH[dtype]).contiguous().view(torch.uint8).numpy().tobytes()
    return TensorRef("x", dtype, tuple(values.shape), MemoryFile("x.safetensors", data), 0, len(data))


@EVERY_FLOAT
def test_scan_counts_what_is_not_finite(dtype: str) -> None:
    values = torch.ones(10, 4)
    assert scan(ref(values, dtype)) == Scan(0, None, all_zero=False)
    values[7, 2], values[4, 1], values[9, 3] = np.inf, -np.inf, np.nan
    assert scan(ref(values, dtype)) == Scan(3, 17, all_zero=False)


@EVERY_FLOAT
def test_minus_zero_is_zero_and_the_smallest_value_is_not(dtype: str) -> None:
    values = torch.zeros(10, 4, dtype=TORCH[dtype])
    values[3, 1] = -0.0
    assert scan(ref(values, dtype)).all_zero
    for row in (9, 0):  # in the last block, and in the first alone
        values[:] = 0
        values[row, 3] = torch.finfo(TORCH[dtype]).smallest_normal
        assert not scan(ref(values, dtype)).all_zero


def test_an_empty_tensor_is_neither() -> None:
    assert scan(ref(torch.zeros(0, 4), "BF16")) == Scan(0, None, all_zero=False)


@EVERY_FLOAT
@pytest.mark.parametrize("row", [0, 2, 3, 9])
def test_the_first_row_that_differs(dtype: str, row: int) -> None:
    values = torch.arange(40.0).reshape(10, 4)
    other = values.clone()
    other[row:, 3] += 1
    assert first_difference(ref(values, dtype), ref(other, dtype)) == row
    assert first_difference(ref(values, dtype), ref(values, dtype)) is None


@pytest.mark.parametrize(("mine", "theirs"), [("BF16", "F32"), ("F32", "F16")])
def test_other_dtypes_are_compared_by_value(mine: str, theirs: str) -> None:
    values = torch.arange(40.0).reshape(10, 4)
    assert first_difference(ref(values, mine), ref(values, theirs)) is None
    values[5, 1] += 0.001  # lost in the narrower of the two
    assert first_difference(ref(values, mine), ref(values, theirs)) == 5


def test_the_bytes_read_are_told() -> None:
    told: list[int] = []
    scan(ref(torch.ones(10, 4), "BF16"), ByteCounter(told.append))
    assert told == [24, 48, 72, 80]
    told.clear()
    first_difference(ref(torch.ones(10, 4), "BF16"), ref(torch.ones(10, 4), "F32"), ByteCounter(told.append))
    assert told == [72, 144, 216, 240]
