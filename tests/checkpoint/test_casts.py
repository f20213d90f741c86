import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftconv.checkpoint.casts import FLOAT_BITS, cast
from draftconv.checkpoint.dtypes import FLOATS
from draftconv.errors import Refused

TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
SIGNED = {"F16": torch.int16, "BF16": torch.int16, "F32": torch.int32, "F64": torch.int64}


def by_torch(bits: NDArray[np.uint64], source: str, target: str) -> NDArray[np.uint64]:
    tensor = torch.from_numpy(bits.view(f"i{bits.dtype.itemsize}")).view(TORCH[source])
    return tensor.to(TORCH[target]).view(SIGNED[target]).numpy().view(FLOAT_BITS[target].kind)


def is_nan(bits: NDArray[np.uint64], dtype: str) -> NDArray[np.bool_]:
    form = FLOAT_BITS[dtype]
    found: NDArray[np.bool_] = (bits & form.magnitude) > form.exponent
    return found


def is_infinite(bits: NDArray[np.uint64], dtype: str) -> NDArray[np.bool_]:
    form = FLOAT_BITS[dtype]
    found: NDArray[np.bool_] = (bits & form.magnitude) == form.exponent
    return found


def fits(bits: NDArray[np.uint64], source: str, target: str) -> NDArray[np.bool_]:
    """Which values do not overflow, so that `cast` may be asked for them."""
    fine: NDArray[np.bool_] = ~is_infinite(by_torch(bits, source, target), target) | is_infinite(bits, source)
    return fine


@pytest.mark.parametrize("source", ["F16", "BF16"])
@pytest.mark.parametrize("target", ["F16", "BF16", "F32", "F64"])
def test_all_16_bit_patterns_as_torch_casts_them(source: str, target: str) -> None:
    bits = np.arange(65536, dtype="<u2")
    bits = bits[fits(bits, source, target)]
    found = cast(bits, source, target, "x")
    wanted = by_torch(bits, source, target)
    nan = is_nan(bits, source)
    assert found.dtype == np.dtype(FLOAT_BITS[target].kind)
    assert (found[~nan] == wanted[~nan]).all()
    assert (is_nan(found, target) == nan).all()


@pytest.mark.parametrize("target", ["F16", "BF16", "F64"])
def test_float32_as_torch_casts_it(target: str) -> None:
    random = np.random.default_rng(0)
    patterns = random.integers(0, 2**32, 200_000, dtype=np.uint32)
    near = (random.standard_normal(200_000) * 0.02).astype("<f4").view("<u4")
    ties = (random.integers(0, 2**16, 65536, dtype=np.uint32) << 16) | 0x8000
    edges = np.array([65519.996, 65504, 6e-8, 2.9802322e-8, 2.980233e-8, 0, -0.0, np.inf], "<f4").view("<u4")
    bits = np.concatenate([patterns, near, ties, edges])
    bits = bits[fits(bits, "F32", target)]
    found, wanted, nan = cast(bits, "F32", target, "x"), by_torch(bits, "F32", target), is_nan(bits, "F32")
    assert (found[~nan] == wanted[~nan]).all()
    assert (is_nan(found, target) == nan).all()


def grid(target: str) -> tuple[NDArray[np.float64], NDArray[np.uint16]]:
    """Every finite non-negative value of a 16-bit float and its bits, ascending, as float64."""
    bits = np.arange(FLOAT_BITS[target].exponent, dtype="<u2")
    return cast(bits, target, "F64", "x").view("<f8"), bits


@pytest.mark.parametrize("target", ["F16", "BF16"])
def test_float64_is_rounded_once(target: str) -> None:
    """Against the definition: the nearest value, and of two equally near the even one."""
    values, bits = grid(target)
    random = np.random.default_rng(1)
    low = random.integers(0, len(values) - 1, 50_000)
    middle = (values[low] + values[low + 1]) / 2
    # just beside a tie is where rounding twice, over float32, goes wrong
    tries = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf)])
    tries = np.concatenate([tries, values[low] + random.random(50_000) * (values[low + 1] - values[low])])
    below = np.searchsorted(values, tries, side="right") - 1
    above = np.minimum(below + 1, len(values) - 1)
    to_below, to_above = tries - values[below], values[above] - tries
    up = (to_above < to_below) | ((to_above == to_below) & (bits[below] % 2 == 1))
    wanted = np.where(up, bits[above], bits[below])
    assert (cast(tries.view("<u8"), "F64", target, "x") == wanted).all()
    assert (cast((-tries).view("<u8"), "F64", target, "x") == wanted | 0x8000).all()


@settings(max_examples=300)
@given(st.integers(0, 2**64 - 1))
def test_float64_to_float32_as_torch_casts_it(pattern: int) -> None:
    bits = np.array([pattern], dtype="<u8")
    if not fits(bits, "F64", "F32").all():
        with pytest.raises(Refused):
            cast(bits, "F64", "F32", "x")
        return
    found = cast(bits, "F64", "F32", "x")
    assert is_nan(found, "F32").all() if is_nan(bits, "F64").all() else found == by_torch(bits, "F64", "F32")


@pytest.mark.parametrize(
    ("source", "target", "value"),
    [
        ("BF16", "F16", 65536.0),
        ("F32", "F16", 65520.0),
        ("F32", "BF16", 3.4e38),
        ("F64", "F32", 1e39),
        ("F64", "BF16", 1e300),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_is_refused_by_name(source: str, target: str, value: float, sign: int) -> None:
    wide = np.array([1.0, np.inf, np.nan, sign * value])
    bits = cast(wide.view("<u8"), "F64", source, "source") if source != "F64" else wide.view("<u8")
    with pytest.raises(Refused, match=rf"tensor lm_head holds {'-' if sign < 0 else ''}[0-9.e+]+, which {target}"):
        cast(bits, source, target, "lm_head")


@pytest.mark.parametrize("target", ["F16", "BF16", "F32"])
def test_nan_keeps_its_sign_and_is_quiet(target: str) -> None:
    bits = np.array([0x7FF0_0000_0000_0001, 0xFFFF_FFFF_FFFF_FFFF], dtype="<u8")
    found = cast(bits, "F64", target, "x")
    form = FLOAT_BITS[target]
    assert (found & (form.exponent | form.quiet) == form.exponent | form.quiet).all()
    assert [int(value) > form.magnitude for value in found] == [False, True]


def test_same_dtype_is_the_same_array() -> None:
    bits = np.array([0x7F81], dtype="<u2")
    assert cast(bits, "BF16", "BF16", "x") is bits


def test_every_float_has_its_bits() -> None:
    assert FLOAT_BITS.keys() == FLOATS
    for dtype, form in FLOAT_BITS.items():
        values = torch.tensor([np.inf, -0.0, np.nan], dtype=TORCH[dtype]).view(SIGNED[dtype]).numpy().view(form.kind)
        infinity, zero, nan = (int(value) & form.magnitude for value in values)
        assert (infinity, zero, nan & form.quiet) == (form.exponent, 0, form.quiet)
