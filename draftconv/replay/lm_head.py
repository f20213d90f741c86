"""The drafters' heads over blocks of the vocabulary: [rows, vocabulary] never exists as a whole.

For a Kimi head one row of logits is 163 840 floats; a thousand rows would be as large as a
tenth of the head itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from draftconv.reference.drafter import DrafterModel

LOGITS_AT_ONCE = 1 << 24
"""Elements of a block of logits: 64 MB in float32."""
LOGITS_IN_CACHE = 1 << 20
"""The same on a CPU: 4 MB, which stay in its cache while they are looked at (a tenth faster on the fixtures)."""

NOT_FINITE = -1
"""In place of a drafted row of the head, where the largest logit is NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head [Vd, H] and which target token each of its rows stands for (None: row v is token v)."""

    weight_VH: Tensor
    d2t_V: Tensor | None

    @classmethod
    def of(cls, model: DrafterModel) -> Self:
        """The head of a drafter."""
        return cls(model.lm_head.weight, model.d2t if model.facts.reduced_vocab else None)

    def logits(self, normed_RH: Tensor, first: int, last: int) -> Tensor:
        """Logits [R, last - first] of some rows of the head, in float32 or better."""
        logits_RV = functional.linear(normed_RH, self.weight_VH[first:last])
        return logits_RV.to(_logit_dtype(logits_RV.dtype))

    def drafts_like(self, other: Head) -> bool:
        """Whether row v is the same target token in both."""
        if len(self.weight_VH) != len(other.weight_VH):
            return False
        if self.d2t_V is None or other.d2t_V is None:
            return self.d2t_V is other.d2t_V
        return torch.equal(self.d2t_V, other.d2t_V)


class Best:
    """The largest logit of each row so far; of equal ones the lowest index, as argmax in the engines."""

    def __init__(self, normed_RH: Tensor) -> None:
        self.value_R = _accumulator(normed_RH, float("-inf"))
        self.index_R = torch.full_like(self.value_R, NOT_FINITE, dtype=torch.int64)

    def see(self, logits_RV: Tensor, first: int) -> None:
        """Take in the logits from row `first` of the head on."""
        value_R, index_R = logits_RV.max(dim=-1)
        better_R = (value_R > self.value_R) | value_R.isnan()
        self.index_R = torch.where(better_R, index_R + first, self.index_R)
        self.value_R = torch.where(better_R, value_R, self.value_R)

    def tokens(self) -> Tensor:
        """Rows of the head [R]; `NOT_FINITE` where the largest logit is not."""
        return torch.where(self.value_R.isfinite(), self.index_R, NOT_FINITE)


class KlDivergence:
    """KL(p ‖ q) in nats between two rows of logits, over blocks.

    KL = Σ e^p (p - q) / Σ e^p - log Σ e^p + log Σ e^q.
    """

    def __init__(self, normed_RH: Tensor) -> None:
        self.p, self.q = _Exponentials(normed_RH), _Exponentials(normed_RH)

    def see(self, p_RV: Tensor, q_RV: Tensor) -> None:
        """Take in a block of both."""
        self.p.see(p_RV, p_RV - q_RV)
        self.q.see(q_RV)

    def nats(self) -> Tensor:
        """[R], float32, not below 0."""
        kl_R = self.p.mean() - self.p.log_total() + self.q.log_total()
        return kl_R.clamp_min(0).to(torch.float32)


class _Exponentials:
    """Σ e^x and, where there are y, Σ e^x y over blocks, both relative to the largest x so far."""

    def __init__(self, normed_RH: Tensor) -> None:
        self.largest_R = _accumulator(normed_RH, float("-inf"))
        self.total_R, self.weighted_R = _accumulator(normed_RH, 0.0), _accumulator(normed_RH, 0.0)

    def see(self, x_RV: Tensor, y_RV: Tensor | None = None) -> None:
        largest_R = torch.maximum(x_RV.amax(dim=-1), self.largest_R)
        shrink_R = torch.exp(self.largest_R - largest_R)
        weight_RV = (x_RV - largest_R[:, None]).exp_()
        self.largest_R = largest_R
        self.total_R = self.total_R * shrink_R + weight_RV.sum(dim=-1)
        if y_RV is not None:
            self.weighted_R = self.weighted_R * shrink_R + weight_RV.mul_(y_RV).sum(dim=-1)

    def log_total(self) -> Tensor:
        return self.largest_R + self.total_R.log()

    def mean(self) -> Tensor:
        return self.weighted_R / self.total_R


def _accumulator(normed_RH: Tensor, start: float) -> Tensor:
    """One accumulator per row, in the dtype of logits."""
    return torch.full(normed_RH.shape[:1], start, device=normed_RH.device, dtype=_logit_dtype(normed_RH.dtype))


def _logit_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def best_tokens(head: Head, normed_RH: Tensor) -> Tensor:
    """The drafted row of the head for each row: int64 [R], or `NOT_FINITE`."""
    best = Best(normed_RH)
    for first, last in _vocabulary_blocks(head, normed_RH):
        best.see(head.logits(normed_RH, first, last), first)
    return best.tokens()


def token_log_probs(head: Head, normed_RH: Tensor, row_R: Tensor, temperature: float) -> Tensor:
    """log q of one row of the head for each row of inputs, at a temperature: [R], float32 or better.

    Args:
        row_R: int64, rows of the head; -1 for a token that it does not have, whose log q is -inf.
    """
    total = _Exponentials(normed_RH)
    wanted_R = _accumulator(normed_RH, float("-inf"))
    for first, last in _vocabulary_blocks(head, normed_RH):
        logits_RV = head.logits(normed_RH, first, last) / temperature
        total.see(logits_RV)
        here_R = (row_R >= first) & (row_R < last)
        picked_R = logits_RV.gather(1, (row_R - first).clamp(0, last - first - 1)[:, None])[:, 0]
        wanted_R = torch.where(here_R, picked_R, wanted_R)
    return wanted_R - total.log_total()


def compared_tokens(
    reference: Head, normed_RH: Tensor, others: Sequence[tuple[Head, Tensor]]
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """What several heads draft at the same roots, and how far each is from the first, in one pass.

    Args:
        others: heads that draft like the reference, and what each of them reads [R, H].

    Returns:
        What the reference drafts, and for each other what it drafts and KL(reference ‖ other) in
        nats; all [R], drafts as `best_tokens`.
    """
    best = Best(normed_RH)
    accumulators = [(Best(other_RH), KlDivergence(other_RH)) for _, other_RH in others]
    for first, last in _vocabulary_blocks(reference, normed_RH):
        reference_RV = reference.logits(normed_RH, first, last)
        best.see(reference_RV, first)
        for (head, other_RH), (drafted, divergence) in zip(others, accumulators, strict=True):
            logits_RV = head.logits(other_RH, first, last)
            drafted.see(logits_RV, first)
            divergence.see(reference_RV, logits_RV)
    return best.tokens(), [(drafted.tokens(), divergence.nats()) for drafted, divergence in accumulators]


def _vocabulary_blocks(head: Head, normed_RH: Tensor) -> Iterator[tuple[int, int]]:
    most = min(LOGITS_AT_ONCE, LOGITS_IN_CACHE) if normed_RH.device.type == "cpu" else LOGITS_AT_ONCE
    vocab, step = len(head.weight_VH), max(1, most // max(1, len(normed_RH)))
    for first in range(0, vocab, step):
        yield first, min(first + step, vocab)
