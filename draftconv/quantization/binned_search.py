"""The scale of least squared error of whole rows, from how often each value occurs in them.

`Scaling.search` rounds every weight under every scale that it tries. In BF16 a row of thousands of weights has few
different values: the magnitudes that any tried scale may round to more than zero lie in `OCTAVES` octaves of 128
each. So weights are counted once, and every scale is judged by the counts: what weights are rounded to changes at
seven or eight thresholds, and between them sums of counts are enough.

The scales are those of `Scaling.search`, bit for bit. It adds up in float32, in an order of its own; where the choice
hangs on digits that such a sum does not have, the row is given to it. On random weights that is one row in a hundred.

Shapes: O output rows, B of them at a time, I inputs, N bins, T scales tried, K magnitudes other than zero that a
quantized value has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from draftconv.quantization.quantized_values import nearest
from draftconv.quantization.scales import REFINEMENTS, Scaling
from draftconv.quantization.scheme import DTYPES

OCTAVES = 7
"""From a row's largest magnitude down. The smallest tried scale rounds to zero what is below half of it, a 81st of the
largest; an octave is left for refinements, and where one goes further the row is searched without bins."""

CLIPPED = 3
"""Octaves from the largest magnitude down in which negative weights may become -8."""

PER_OCTAVE = 128
"""Magnitudes that BF16 has in an octave."""

BINS = OCTAVES * PER_OCTAVE

LEAST_INPUTS = 2 * BINS
"""Shorter rows have more bins than they are worth."""

TOLERANCE = 4e-6
"""Relative error that a float32 sum of squares, or a scale that follows from one, may have at most: torch adds up in a
tree, so some fifteen roundings of 2⁻²⁴, several times over."""

LARGEST = 2.0**120
"""Of Σ w²: beyond it sums in float32 come to infinity, and which scale they choose is their affair."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How much lies from a bin on, up to the largest magnitude.

    Attributes:
        every_ON: of all weights what lies up to a bin. `negative_OC`: of negative ones, in the last `CLIPPED` octaves.
    """

    every_ON: Tensor
    negative_OC: Tensor

    @classmethod
    def of(cls, every_ON: Tensor, negative_OC: Tensor) -> Reach:
        """From what lies in each bin."""
        return cls(every_ON.cumsum(1), negative_OC.cumsum(1))

    def from_thresholds(self, first_TOK: Tensor, high: int) -> Tensor:
        """How much reaches each level: [T, O, K], exact. Beyond `high` there are levels for negative weights only."""
        below = BINS - self.negative_OC.shape[1]
        parts = (_from(self.every_ON, first_TOK[..., :high]), _from(self.negative_OC, first_TOK[..., high:] - below))
        return torch.cat(parts, -1)


@dataclass(frozen=True, slots=True)
class BinnedRows:
    """What is known of rows once their weights are counted. Bins ascend by magnitude.

    Attributes:
        bottom_O: the BF16 pattern of the first bin's magnitude. `value_ON`: the magnitudes, float32.
        counts: of weights, float32. `sums`: of their magnitudes, float64. Both are exact.
        energy_O: Σ w², or a little more where weights lie below all bins; float64.
    """

    bottom_O: Tensor
    value_ON: Tensor
    counts: Reach
    sums: Reach
    energy_O: Tensor

    @classmethod
    def of(cls, weight_OI: Tensor, at_once: int) -> BinnedRows:
        """Count the weights of BF16 rows, about `at_once` at a time."""
        parts = [_count(part) for part in torch.split(weight_OI, max(1, at_once // weight_OI.shape[1]))]
        bottom_O = torch.cat([top for top, _ in parts]) - (BINS - 1)
        value_ON = _floats(bottom_O[:, None] + torch.arange(BINS, dtype=torch.int32))
        count_ON, negative_ON = torch.cat([count.float() for _, count in parts], 1)
        below_O, count_ON = (count_ON[:, 0] + negative_ON[:, 0]), count_ON[:, 1:] + negative_ON[:, 1:]
        negative_OC, last = negative_ON[:, -CLIPPED * PER_OCTAVE :], value_ON[:, -CLIPPED * PER_OCTAVE :]
        sum_ON = count_ON.double() * value_ON
        energy_O = (sum_ON * value_ON).sum(1) + below_O * value_ON[:, 0].double().square()
        sums = Reach.of(sum_ON, negative_OC.double() * last)
        return cls(bottom_O, value_ON, Reach.of(count_ON, negative_OC), sums, energy_O)

    def judge(self, step_TO: Tensor, scaling: Scaling) -> RoundedSums:
        """What rounding under some scales does to every row; the scales float32, with the values of BF16."""
        low, high = int(DTYPES[scaling.dtype].low), int(DTYPES[scaling.dtype].high)
        level_K = torch.arange(1, 1 - low, dtype=torch.float32)
        # In float32 without rounding: a BF16 scale has eight digits and half of an odd number below 16 has four.
        place_TOK = _patterns(step_TO[..., None] * (level_K - 0.5)) - self.bottom_O[:, None]
        seen_TO = (place_TOK[..., 0] >= 0) & (place_TOK[..., high:] >= BINS - CLIPPED * PER_OCTAVE).all(-1)
        # A weight in the bin of a threshold is below it, or lies on it and is rounded as the arithmetic would have it,
        # to even, on either side of zero; the negative side has all levels.
        inside_TOK = place_TOK.clamp(0, BINS - 1).long()
        value_TOK = self.value_ON.expand(len(step_TO), -1, -1).gather(-1, inside_TOK)
        rounded_TOK = nearest(scaling.units(-value_TOK, step_TO[..., None]), scaling.dtype)
        first_TOK = torch.where(place_TOK < BINS, inside_TOK + (rounded_TOK > -level_K), BINS)
        # From one level to the next a weight's quantized value grows by 1, and its square by twice the level less 1.
        product_TO = self.sums.from_thresholds(first_TOK, high).sum(-1)
        square_TO = (self.counts.from_thresholds(first_TOK, high).double() * (2 * level_K - 1)).sum(-1)
        step_TO = step_TO.double()
        error_TO = self.energy_O - 2 * step_TO * product_TO + step_TO.square() * square_TO
        return RoundedSums(error_TO, product_TO, square_TO, seen_TO)


class RoundedSums(NamedTuple):
    """Rows rounded under scales, float64.

    Attributes:
        error_TO: Σ (w - step · q)². `product_TO`: Σ w q. `square_TO`: Σ q².
        seen_TO: bool; False where weights below all bins would be rounded to more than zero: the sums are then wrong.
    """

    error_TO: Tensor
    product_TO: Tensor
    square_TO: Tensor
    seen_TO: Tensor

    def of_best(self, best_1O: Tensor) -> RoundedSums:
        """Of one scale per row: [1, O]."""
        return RoundedSums(*(tensor_TO.gather(0, best_1O) for tensor_TO in self))


def fits(weight_OI: Tensor, scaling: Scaling, group: int) -> bool:
    """Whether rows are searched by bins: long BF16 rows under INT4 scales of their own, stored in BF16, on a CPU.

    A GPU tries all scales in the time of a few launches.
    """
    return (
        scaling.rule.divisor is None
        and scaling.dtype == "int4"
        and weight_OI.dtype == scaling.scale_dtype == torch.bfloat16
        and group == weight_OI.shape[1] >= LEAST_INPUTS
        and weight_OI.device.type == "cpu"
    )


def search_rows(weight_OI: Tensor, scaling: Scaling, at_once: int) -> Tensor:
    """The stored scales [O, 1] that `Scaling.search` finds for rows, each of which is one group.

    Args:
        weight_OI: bfloat16, as `fits` has it; what is not finite has scales that mean nothing.
        at_once: weights that are worked on together.
    """
    rows = BinnedRows.of(weight_OI, at_once)
    top_O1 = rows.value_ON[:, -1:]
    tried_TO = scaling.tried(top_O1).squeeze(-1)
    judged = rows.judge(tried_TO.float(), scaling)
    (least_O, second_O), (best_O, _) = judged.error_TO.topk(2, dim=0, largest=False)
    certain_O = judged.seen_TO.all(0) & (second_O - least_O > TOLERANCE * least_O) & (rows.energy_O < LARGEST)
    stored_O, chosen = tried_TO.gather(0, best_O[None])[0], judged.of_best(best_O[None])
    for _ in range(REFINEMENTS[scaling.dtype]):
        ratio_O = chosen.product_TO[0] / chosen.square_TO[0].clamp_min(0.25)
        refined_O, other_O = (scaling.stored(ratio_O * part, 1) for part in (1 - TOLERANCE, 1 + TOLERANCE))
        now = rows.judge(refined_O.float()[None], scaling)
        gain_O = (chosen.error_TO - now.error_TO)[0]
        same_O = refined_O == stored_O
        told_O = same_O | (gain_O.abs() > TOLERANCE * chosen.error_TO[0])
        certain_O &= (refined_O == other_O) & now.seen_TO[0] & told_O
        better_O = ~same_O & (gain_O > 0)
        stored_O = torch.where(better_O, refined_O, stored_O)
        chosen = RoundedSums(*(torch.where(better_O, new, old) for new, old in zip(now, chosen, strict=True)))
    stored_O1 = stored_O[:, None]
    for at in torch.split((~certain_O).nonzero().squeeze(1), max(1, at_once // weight_OI.shape[1])):
        stored_O1[at] = scaling.search(weight_OI[at].float()[:, None], top_O1[at])
    return stored_O1


def _count(weight_BI: Tensor) -> tuple[Tensor, Tensor]:
    """The largest BF16 pattern of each row, int32 [B]; and how many weights have which: not negative, negative.

    The counts are [2, B, 1 + N]; the first place is of all magnitudes below the bins.
    """
    pattern_BI, places = weight_BI.view(torch.int16), BINS + 1
    place_BI = pattern_BI & 0x7FFF
    top_B1 = place_BI.amax(1, keepdim=True)
    place_BI.sub_(top_B1 - BINS).clamp_min_(0)
    place_BI.add_(pattern_BI >> 15, alpha=-places)  # of a negative number the shift leaves -1
    row_B1 = torch.arange(len(weight_BI), dtype=torch.int32)[:, None] * (2 * places)
    count = torch.bincount((place_BI + row_B1).view(-1), minlength=len(weight_BI) * 2 * places)
    return top_B1.squeeze(1).int(), count.view(-1, 2, places).transpose(0, 1)


def _from(reach_ON: Tensor, first_TOK: Tensor) -> Tensor:
    """What lies from some bins on. Subtraction leaves no error: these sums need less digits than there are."""
    before_TOK = reach_ON.expand(len(first_TOK), -1, -1).gather(-1, (first_TOK - 1).clamp_min(0))
    return reach_ON[:, -1:] - torch.where(first_TOK > 0, before_TOK, 0)


def _floats(pattern: Tensor) -> Tensor:
    """BF16 patterns, int32, as float32; those below zero's as zero."""
    return (pattern.clamp_min(0) << 16).view(torch.float32)


def _patterns(x: Tensor) -> Tensor:
    """The BF16 pattern at or below positive float32 numbers, int32."""
    return x.view(torch.int32) >> 16
