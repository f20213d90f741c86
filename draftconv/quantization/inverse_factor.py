"""The triangular factor of an inverse, in place: what GPTQ spreads rounding errors by.

For A = L Lᵀ it is X = L⁻¹, lower triangular, with Xᵀ X = A⁻¹. Inputs stand in A in reverse: the last is rounded
first. Turned round, X is then what `cholesky(inverse(H), upper=True)` is of Frantar et al. 2022, with half the
arithmetic, and with no inverse that is multiplied out and loses digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftconv.quantization.threads import Workers

SIDE = 512
"""Of the square blocks that one thread works on."""


def damp(moment_II: Tensor, share: float) -> Tensor:
    """Add `share` of the mean of the diagonal to the diagonal, in place."""
    diagonal_I = moment_II.diagonal()
    diagonal_I += share * diagonal_I.double().mean()
    return moment_II


def invert_factor(matrix_II: Tensor, each: Workers) -> bool:
    """Replace a symmetric matrix by X, lower triangular, with Xᵀ X its inverse.

    Only the lower triangle is read. What stands above the diagonal afterwards means nothing.

    Returns:
        False when the matrix is not positive definite as far as its dtype tells; what it holds is then of no use.
    """
    return _factor(matrix_II, each) and _invert(matrix_II, each)


def _factor(a_II: Tensor, each: Workers) -> bool:
    """The lower Cholesky factor, block column by block column."""
    inputs = len(a_II)
    for start in range(0, inputs, SIDE):
        at = slice(start, min(start + SIDE, inputs))

        def subtract(first: int, at: slice = at, before: slice = slice(start)) -> None:
            rows = slice(first, first + SIDE)
            a_II[rows, at].addmm_(a_II[rows, before], a_II[at, before].T, alpha=-1)

        if start:
            each(subtract, range(start, inputs, SIDE))
        factor, failed = torch.linalg.cholesky_ex(a_II[at, at])
        if int(failed) or not bool(factor.diagonal().isfinite().all()):
            return False
        a_II[at, at] = factor

        def solve(first: int, at: slice = at, upper: Tensor = factor.T) -> None:
            rows = slice(first, first + SIDE)
            a_II[rows, at] = torch.linalg.solve_triangular(upper, a_II[rows, at], upper=True, left=False)

        each(solve, range(at.stop, inputs, SIDE))
    return True


def _invert(l_II: Tensor, each: Workers) -> bool:
    """The inverse of a lower triangular matrix, block row by block row; the rows above are inverted already."""
    inputs = len(l_II)
    for start in range(0, inputs, SIDE):
        at = slice(start, min(start + SIDE, inputs))
        one = torch.eye(at.stop - at.start, dtype=l_II.dtype, device=l_II.device)
        inverse = torch.linalg.solve_triangular(l_II[at, at], one, upper=False)
        row = inverse @ l_II[at, :start]

        def fill(first: int, at: slice = at, row: Tensor = row) -> None:
            columns = slice(first, min(first + SIDE, at.start))
            below = slice(first, at.start)
            l_II[at, columns] = -(row[:, below] @ l_II[below, columns])

        each(fill, range(0, start, SIDE))
        l_II[at, at] = inverse
    return bool(l_II.diagonal().isfinite().all())
