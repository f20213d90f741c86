"""The rules of quantization in plain Python, one number at a time, written from their formulas.

Nothing here uses torch or draftconv: two implementations that share nothing have to agree.
Numbers are Python floats that hold float32 (or narrower) values exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction

EPS = 2.0**-23


def f32(x: float) -> float:
    """The nearest float32; exact for products and quotients of two float32."""
    value: float = struct.unpack("<f", struct.pack("<f", x))[0]
    return value


def bf16(x: float) -> float:
    """The nearest bfloat16 of a float32, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits += 0x7FFF + (bits >> 16 & 1)
    value: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]
    return value


def f16(x: float) -> float:
    """The nearest float16 of a float32, ties to even."""
    value: float = struct.unpack("<e", struct.pack("<e", x))[0]
    return value


NARROW = {"F32": f32, "BF16": bf16, "F16": f16}


def top(row: Sequence[float]) -> float:
    return max(map(abs, row))


def quark_int4(row: Sequence[float], dtype: str) -> tuple[list[int], float]:
    """amd-quark: scale max/7.5 in the weight's dtype, codes from the product with its reciprocal."""
    scale = max(NARROW[dtype](f32(top(row) / 7.5)), EPS)
    inverse = f32(1 / scale)
    return [clamp(round(f32(w * inverse)), -8, 7) for w in row], scale


def modelopt_int(row: Sequence[float], bits: int) -> tuple[list[int], float]:
    """nvidia-modelopt: scale max/7 or max/127 in float32, codes from the quotient."""
    high = 2 ** (bits - 1) - 1
    scale = f32(top(row) / high) or 1.0
    return [clamp(round(f32(w / scale)), -high - 1, high) for w in row], scale


def e4m3() -> list[float]:
    """All finite magnitudes of E4M3, in the order of their codes 0...126."""
    return [
        mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        for exponent in range(16)
        for mantissa in range(8)
    ][:-1]


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def nearest(x: float, magnitudes: Sequence[float]) -> float:
    """The nearest of a float format's values, ties to the even code, saturated."""
    exact = Fraction(abs(x))
    code = min(range(len(magnitudes)), key=lambda i: (abs(Fraction(magnitudes[i]) - exact), i % 2))
    return -magnitudes[code] if x < 0 else magnitudes[code]


def fp8(row: Sequence[float], largest: float, quotient: str = "F32") -> tuple[list[float], float]:
    """nvidia-modelopt: scale max/448 in float32, codes from the quotient, which per tensor has the weight's dtype."""
    scale = f32(largest / 448) or 1.0
    return [nearest(NARROW[quotient](f32(w / scale)), e4m3()) for w in row], scale


def nvfp4(block: Sequence[float], largest: float) -> tuple[list[float], float, float]:
    """nvidia-modelopt: values, E4M3 scale of 16 weights, float32 scale of the tensor."""
    unit = f32(largest / 2688) or 1.0
    scale = nearest(max(f32(top(block) / f32(6 * unit)) or 1.0, 2.0**-9), e4m3())
    step = f32(scale * unit)
    return [nearest(f32(w / step), E2M1) for w in block], scale, unit


def mxfp4(block: Sequence[float]) -> tuple[list[float], int]:
    """amd-quark `even`: values of 32 weights, and the exponent of their scale."""
    largest, exponent = top(block), 0
    if largest:
        while 2.0 ** (exponent + 1) * 1.75 <= largest:
            exponent += 1
        while 2.0**exponent * 1.75 > largest:
            exponent -= 1
        exponent -= 1  # 1.75 * 2**e and above counts as 2**(e + 1); the largest code is 1.5 * 2**2
    return [nearest(w / 2.0**exponent, E2M1) for w in block], exponent


def int8_token(row: Sequence[float]) -> list[float]:
    """vLLM: codes from x * (127 / max), scale max/127."""
    largest = top(row)
    if not largest:
        return [0.0 for _ in row]
    factor, scale = f32(127 / largest), f32(largest / 127)
    return [f32(clamp(round(f32(x * factor)), -128, 127) * scale) for x in row]


def fp8_token(row: Sequence[float]) -> list[float]:
    """vLLM: scale max/448, at least 1/(448 * 512), codes from x * (1 / scale)."""
    scale = max(f32(top(row) / 448), f32(1 / (448 * 512)))
    inverse = f32(1 / scale)
    return [f32(nearest(f32(x * inverse), e4m3()) * scale) for x in row]


def word(nibbles: Sequence[int], slots: Sequence[int]) -> int:
    """Eight codes in a signed 32-bit word: slot i, from the bottom, holds element slots[i]."""
    bits = sum((nibbles[element] & 0xF) << 4 * slot for slot, element in enumerate(slots))
    return bits - 2**32 if bits >= 2**31 else bits


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))
