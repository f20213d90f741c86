"""How a target's text is drawn: what is done to its logits before a token is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftconv.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampled text; greedy text has none.

    Attributes:
        temperature: logits are divided by it, above 0.
        top_p: only the most likely tokens that together have at least this probability; 1 keeps all.
        top_k: only so many most likely tokens; 0 keeps all.
        min_p: only tokens at least this share as likely as the most likely one; 0 keeps all.
        seed: of the draws.

    Raises:
        UsageError: a number outside its range.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, fits, wanted in (
            ("temperature", self.temperature, 0 < self.temperature <= MOST, f"above 0, {MOST} at most"),
            ("top-p", self.top_p, 0 < self.top_p <= 1, "above 0, 1 at most"),
            ("top-k", self.top_k, self.top_k >= 0, "from 0"),
            ("min-p", self.min_p, 0 <= self.min_p < 1, "from 0, below 1"),
            ("seed", self.seed, 0 <= self.seed < 1 << 63, "from 0, below 2^63"),
        ):
            if not math.isfinite(value) or not fits:
                raise UsageError(f"--{name} {value}: out of range", cure=f"give a number {wanted}")

    def __str__(self) -> str:
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top_p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"top_k {self.top_k}"] if self.top_k else []
        parts += [f"min_p {self.min_p:g}"] if self.min_p else []
        return ", ".join([*parts, f"seed {self.seed}"])


MOST = 100
"""The largest temperature: beyond it every token is as likely as every other, and so is a mistyped number."""
