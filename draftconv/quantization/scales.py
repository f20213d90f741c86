"""Scales: how they are stored, what a quantized value is multiplied by, and which one errs least.

Shapes as in `draftconv.quantization.rounding`: [O, G] scales over [O, G, g] weights. A
*stored* scale has its dtype on disk; a *step* is what quantized values are multiplied by, float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.quantization.quantized_values import nearest
from draftconv.quantization.scheme import DTYPES, SCALE_RULES, ScaleDtype, ScaleRule, WeightDtype, WeightScheme

FP8_MAX = DTYPES["fp8"].high
_FP8_TINY = 2.0**-9  # the smallest magnitude that E4M3 has

DIVISORS: Mapping[WeightDtype, tuple[float, ...]] = {
    "int4": (7, 7.5, *(7.5 / 0.9**k for k in range(1, 17))),
    "int8": (127, *(127 / 0.95**k for k in range(1, 9))),
    "nvfp4": (6, 4, 5, 7, 8),
    "mxfp4": (3.5, 8, 4, 2),
}
"""What `mse` tries in place of a rule's divisor; the larger, the more is clipped."""

REFINEMENTS: Mapping[WeightDtype, int] = {"int4": 2, "int8": 1, "nvfp4": 1, "mxfp4": 0}
"""How often `mse` then replaces a scale by the least-squares one of the quantized values it gave."""


_DTYPES: Mapping[ScaleDtype, torch.dtype] = {
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "E8M0": torch.uint8,  # the exponent plus 127; torch 2.6 has no E8M0
}


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the scales of one tensor are made.

    Attributes:
        scale_dtype: of stored scales.
        unit: float32 []: what nvfp4 scales are multiples of; 1 on the other dtypes.
        least: smaller magnitudes, other than zero, count as this.
        quotient: what a weight over its scale is rounded to before it is rounded to the dtype.
    """

    dtype: WeightDtype
    rule: ScaleRule
    scale_dtype: torch.dtype
    unit: Tensor
    least: float
    quotient: torch.dtype

    @classmethod
    def of(cls, scheme: WeightScheme, weight: torch.dtype, whole: Tensor) -> Scaling:
        """For weights of one dtype and largest magnitude (float32 [])."""
        weight = torch.float32 if weight == torch.float64 else weight
        scale_dtype = _DTYPES.get(scheme.scale_dtype, weight)
        unit = torch.ones_like(whole)
        if scheme.dtype == "nvfp4":
            unit = torch.where(whole > 0, whole / (DTYPES["nvfp4"].high * FP8_MAX), unit)
        least, quotient = 0.0, torch.float32
        if scheme.dtype in ("int8", "fp8"):
            if scheme.granularity == "tensor":
                # A scale without dimensions widens nothing in torch: BF16 weights over it stay BF16.
                # Source: nvidia-modelopt 0.47 torch/export/unified_export_hf.py, run.
                quotient = weight
            else:
                # Source: nvidia-modelopt 0.47 torch/quantization/nn/modules/tensor_quantizer.py export_amax, run.
                least = torch.finfo(weight).tiny
        return cls(scheme.dtype, SCALE_RULES[scheme.scale_rule], scale_dtype, unit, least, quotient)

    def fit(self, wide_OGg: Tensor, top_OG: Tensor) -> Tensor:
        """The stored scales of weights whose largest magnitudes are `top_OG`, by the scheme's rule."""
        if self.rule.divisor is None:
            return self.search(wide_OGg, top_OG)
        return self.stored(top_OG, self.rule.divisor)

    def stored(self, top_OG: Tensor, divisor: float | Tensor) -> Tensor:
        """top / divisor, rounded to what a file holds."""
        match self.dtype:
            case "nvfp4":
                # Source: nvidia-modelopt 0.47 torch/quantization/qtensor/nvfp4_tensor.py.
                ratio_OG = top_OG / (divisor * self.unit)
                ratio_OG = torch.where(ratio_OG > 0, ratio_OG, 1)
                return ratio_OG.clamp_(_FP8_TINY, FP8_MAX).to(self.scale_dtype)
            case "mxfp4":
                ratio_OG = top_OG / divisor
                exponent_OG = torch.frexp(torch.where(ratio_OG > 0, ratio_OG, 1)).exponent - 1
                return (exponent_OG.clamp_(-127, 127) + 127).to(self.scale_dtype)
            case _:
                if self.rule.floor is not None:
                    return (top_OG / divisor).to(self.scale_dtype).clamp_min_(self.rule.floor)
                scale_OG = (top_OG.clamp_min(self.least) / divisor).to(self.scale_dtype)
                return torch.where((top_OG > 0) & (scale_OG > 0), scale_OG, 1)

    def step(self, stored_OG: Tensor) -> Tensor:
        """What quantized values under a stored scale are multiplied by."""
        return step(self.dtype, stored_OG, self.unit)

    def values(self, wide_OGg: Tensor, stored_OG: Tensor) -> Tensor:
        """The dtype's nearest values under stored scales, in units of the scale: [O, G, g]."""
        return self._values(wide_OGg, self.step(stored_OG)[..., None])

    def units(self, wide_OGg: Tensor, step_OG1: Tensor, out_OGg: Tensor | None = None) -> Tensor:
        """Weights in units of a step, before they are rounded."""
        if self.rule.reciprocal:
            units_OGg = torch.mul(wide_OGg, step_OG1.reciprocal(), out=out_OGg)
        else:
            units_OGg = torch.div(wide_OGg, step_OG1, out=out_OGg)
        return units_OGg.to(self.quotient).float()

    def tried(self, top_OG: Tensor) -> Tensor:
        """The stored scales that `search` begins with: [K, O, G]."""
        return self.stored(top_OG, top_OG.new_tensor(DIVISORS[self.dtype])[:, None, None])

    def _values(self, wide_OGg: Tensor, step_OG1: Tensor, out_OGg: Tensor | None = None) -> Tensor:
        return nearest(self.units(wide_OGg, step_OG1, out_OGg), self.dtype)

    def search(self, wide_OGg: Tensor, top_OG: Tensor) -> Tensor:
        """The stored scale of least squared error among those of `DIVISORS` and their refinements."""
        if top_OG.numel() == 1:
            # A sum with one result may be split among threads; with two it never is, and bits stay.
            return self.search(wide_OGg.expand(2, -1, -1).contiguous(), top_OG.expand(2, -1))[:1]
        tried_KOG = self.tried(top_OG)
        best_OG, error_OG = tried_KOG[0], torch.full_like(top_OG, torch.inf)
        off_OGg = torch.empty_like(wide_OGg)  # for every one of them: fresh memory each time took a fifth of the time
        reach = max(-DTYPES[self.dtype].low, DTYPES[self.dtype].high)
        for stored_OG, step_OG in zip(tried_KOG, self.step(tried_KOG), strict=True):
            # What this scale clips of the largest magnitude alone: where that is more than the whole error of the best
            # scale so far, by more than sums of float32 differ, nothing has to be rounded to know it.
            clipped_OG = (top_OG - reach * step_OG).clamp_min_(0).square_()
            if bool((clipped_OG * 0.9999 > error_OG).all()):
                continue
            best_OG, error_OG = self._better(wide_OGg, stored_OG, step_OG, best_OG, error_OG, off_OGg)
        for _ in range(REFINEMENTS[self.dtype]):
            values = self._values(wide_OGg, self.step(best_OG)[..., None], off_OGg)
            stored_OG = self.stored((wide_OGg * values).sum(-1) / values.square_().sum(-1).clamp_min_(0.25), 1)
            best_OG, error_OG = self._better(wide_OGg, stored_OG, self.step(stored_OG), best_OG, error_OG, off_OGg)
        return best_OG

    def _better(
        self, wide_OGg: Tensor, stored_OG: Tensor, step_OG: Tensor, best_OG: Tensor, error_OG: Tensor, off_OGg: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The scales of less error, of those tried now and the best so far; and that error. Overwrites `off_OGg`."""
        step_OG1 = step_OG[..., None]
        now_OG = self._values(wide_OGg, step_OG1, off_OGg).mul_(step_OG1).sub_(wide_OGg).square_().sum(-1)
        bits = torch.uint8 if best_OG.dtype == torch.float8_e4m3fn else best_OG.dtype  # no `where` of E4M3 in torch 2.6
        chosen_OG = torch.where(now_OG < error_OG, stored_OG.view(bits), best_OG.view(bits)).view(best_OG.dtype)
        return chosen_OG, torch.minimum(now_OG, error_OG)


def step(dtype: WeightDtype, stored: Tensor, unit: Tensor) -> Tensor:
    """What quantized values are multiplied by, float32, from scales as they are stored."""
    if dtype == "mxfp4":
        return torch.exp2(stored.float() - 127)
    return stored.float() * unit
