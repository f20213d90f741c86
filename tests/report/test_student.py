"""Quantiles of t against a published table, closed forms and the density integrated."""

from __future__ import annotations

import math

import pytest

from draftconv.errors import UsageError
from draftconv.report.student import central_share, t_quantile

# Two-sided 5 %: the usual printed table, with the digits that SciPy 1.x gives.
TABLE = {
    1: 12.7062047362,
    2: 4.30265272975,
    3: 3.18244630528,
    4: 2.7764451052,
    5: 2.57058183564,
    10: 2.22813885199,
    20: 2.08596344727,
    29: 2.04522964213,
    30: 2.0422724563,
    60: 2.00029782201,
    120: 1.97993040508,
}


@pytest.mark.parametrize(("degrees", "expected"), TABLE.items())
def test_table(degrees: int, expected: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("probability", [0.5, 0.6, 0.9, 0.975, 0.9999])
def test_closed_forms(probability: float) -> None:
    around = 4 * probability * (1 - probability)
    assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9)
    assert t_quantile(probability, 2) == pytest.approx(2 * (probability - 0.5) * math.sqrt(2 / around), rel=1e-9)


def density(x: float, n: int) -> float:
    constant = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(n * math.pi)
    return float(constant * (1 + x * x / n) ** (-(n + 1) / 2))


@pytest.mark.parametrize("degrees", [1, 2, 7, 12, 79, 259, 1001])
@pytest.mark.parametrize("probability", [0.7, 0.975, 0.995])
def test_the_density_integrates_to_the_probability(probability: float, degrees: int) -> None:
    end, parts = t_quantile(probability, degrees), 20_000
    width = end / parts
    simpson = math.fsum(
        (1 if i in (0, parts) else 4 if i % 2 else 2) * density(i * width, degrees) for i in range(parts + 1)
    )
    error = 0.5 + simpson * width / 3 - probability
    assert abs(error / density(end, degrees) / end) < 1e-8


def test_many_degrees_are_nearly_normal() -> None:
    z, n = 1.959963984540054, 10_000
    assert t_quantile(0.975, n) == pytest.approx(z + (z**3 + z) / (4 * n), rel=1e-7)


def test_the_series_is_a_share() -> None:
    assert central_share(0.0, 6) == 0
    assert central_share(math.pi / 2, 6) == pytest.approx(1)
    assert central_share(math.pi / 2, 7) == pytest.approx(1)


@pytest.mark.parametrize(("probability", "degrees"), [(0.975, 0), (0.4, 5), (1.0, 5)])
def test_what_has_no_quantile(probability: float, degrees: int) -> None:
    with pytest.raises(UsageError, match="no t quantile"):
        t_quantile(probability, degrees)
