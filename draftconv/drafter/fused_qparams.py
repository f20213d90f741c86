"""Values beside the quantized weights that engines join: one is taken for all of them, so they must be equal.

Headers do not show it. The values are scalars, and rows as long as the inputs of a weight: of a large drafter some
hundred KB are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from draftconv.checkpoint import TensorRef, as_float32
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.fused_projections import GROUPS
from draftconv.drafter.problems import Problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCALES: Mapping[str, str] = {
    "weight_scale_2": "joined-weight-scales",
    "weight_scale": "joined-fp8-scales",
    "input_scale": "joined-input-scales",
}
"""Suffix → the problem that it is when it is one number for a whole weight, and another one for the next."""

SMOOTHING = "joined-smoothing"
STORED = frozenset({"F32", "F16", "BF16"})
"""What scales and factors are stored in."""

CODES = frozenset({*SCALES.values(), SMOOTHING})
"""Problems of stored values: a repack keeps them, weights that are dequantized or rounded anew do not have them."""


def joined_values(drafter: Drafter) -> Iterator[Problem]:
    """Groups of joined weights whose scales differ, or whose smoothing an engine does not apply."""
    for layer in range(drafter.facts.layers):
        for group in GROUPS:
            modules = [f"layers.{layer}.{part}" for part in group]
            for suffix, code in SCALES.items():
                refs = _stored_refs(drafter, modules, suffix)
                numbers = {m: ref for m, ref in refs.items() if math.prod(ref.shape) == 1}
                values = {module: float(as_float32(ref).flat[0]) for module, ref in numbers.items()}
                if len(set(values.values())) > 1:
                    detail = ", ".join(f"{module} {value:.6g}" for module, value in values.items())
                    yield Problem(code, f"{suffix}: {detail}")
            yield from _smoothing(drafter, modules)


def _smoothing(drafter: Drafter, modules: Sequence[str]) -> Iterator[Problem]:
    """Factors of inputs that are not the same for all, or that are there although activations stay in 16 bits.

    Beside 16-bit activations TensorRT-LLM drops them even where they are equal.
    """
    factors = {m: as_float32(ref) for m, ref in _stored_refs(drafter, modules, "pre_quant_scale").items()}
    smoothed = [module for module, factor_I in factors.items() if not bool((factor_I == 1).all())]
    if not smoothed:
        return
    if not _all_equal(list(factors.values())) or len(factors) < len(modules):
        yield Problem(SMOOTHING, f"pre_quant_scale is another one in each of {', '.join(modules)}")
    elif not _stored_refs(drafter, modules, "input_scale"):
        yield Problem(SMOOTHING, f"pre_quant_scale of {', '.join(smoothed)} beside 16-bit activations")


def _all_equal(factors: Sequence[NDArray[np.float32]]) -> bool:
    return all(factor.shape == factors[0].shape and bool((factor == factors[0]).all()) for factor in factors)


def _stored_refs(drafter: Drafter, modules: Sequence[str], suffix: str) -> dict[str, TensorRef]:
    """What lies beside these weights under one suffix."""
    refs = ((module, drafter.qparams.get(f"{module}.{suffix}")) for module in modules)
    return {module: ref for module, ref in refs if ref is not None and ref.dtype in STORED}
