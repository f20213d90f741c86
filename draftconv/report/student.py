"""Quantiles of Student's t, so that no statistics library is needed at run time."""

from __future__ import annotations

import math

from draftconv.errors import UsageError


def central_share(angle: float, degrees: int) -> float:
    """P(|T| < √n · tan(angle)) for T of Student's t with n whole degrees of freedom, 0 ≤ angle < π/2.

    Exact finite series (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4);
    every term is positive, so nothing cancels.
    """
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    terms = []
    for k in range(1 + odd, degrees, 2):
        terms.append(term)
        term *= square * k / (k + 1)
    share = sine * math.fsum(terms)
    return 2 / math.pi * (angle + share) if odd else share


def t_quantile(probability: float, degrees: int) -> float:
    """t with P(T < t) = `probability`, by bisection to the last bits; relative error below 1e-10.

    Args:
        probability: 0.5 ≤ probability < 1.
        degrees: n ≥ 1, whole.

    Raises:
        UsageError: an argument outside its range.
    """
    if degrees < 1 or not 0.5 <= probability < 1:
        raise UsageError(f"there is no t quantile at probability {probability} with {degrees} degrees of freedom")
    central = 2 * probability - 1
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if central_share(middle, degrees) < central:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)
