import pytest

from draftconv.checkpoint.dtypes import FLOATS, SIZES, nbytes
from draftconv.errors import BadCheckpoint


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("BF16", (3, 5), 30),
        ("F64", (), 8),
        ("I8", (0, 7), 0),
        ("F4", (3, 4), 6),
        ("F6_E2M3", (4,), 3),
        ("BOOL", (9,), 9),
    ],
)
def test_nbytes(dtype: str, shape: tuple[int, ...], size: int) -> None:
    assert nbytes(dtype, shape) == size


@pytest.mark.parametrize(
    ("dtype", "shape", "fault"),
    [
        ("F12", (1,), "unknown dtype F12"),
        ("F32", (-1,), "negative size"),
        ("U8", (2**62, 4), "absurd shape"),
        ("U8", (2**62, 4, 0), "absurd shape"),
        ("F4", (3,), "does not end on a whole byte"),
        ("U8", (1,) * 65, "65 dimensions"),
    ],
)
def test_nbytes_refuses(dtype: str, shape: tuple[int, ...], fault: str) -> None:
    with pytest.raises(BadCheckpoint, match=fault):
        nbytes(dtype, shape)


def test_only_plain_floats_cast() -> None:
    assert {"F16", "BF16", "F32", "F64"} == FLOATS
    assert set(SIZES) >= FLOATS
