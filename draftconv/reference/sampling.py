"""How a target's text is drawn: what is done to its logits before a token is chosen."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    def seed_of(self, prompt: Sequence[int]) -> int:
        """The seed of one request, by its token ids: below 2^56, whatever shares a batch with it."""
        digest = hashlib.sha256(struct.pack(f"<{len(prompt) + 1}q", self.seed, *prompt)).digest()
        return int.from_bytes(digest[:7], "little")

    def __str__(self) -> str:
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top_p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"top_k {self.top_k}"] if self.top_k else []
        parts += [f"min_p {self.min_p:g}"] if self.min_p else []
        return ", ".join([*parts, f"seed {self.seed}"])


MOST = 100
"""The largest temperature: beyond it every token is as likely as every other, and so is a mistyped number."""


def sampling_of(temperature: float | None, **more: Any) -> Sampling | None:
    """How the text is drawn; None for greedy text.

    Args:
        more: the other attributes of `Sampling` by name, None where nobody says.

    Raises:
        UsageError: a number out of range, or one of the others without a temperature.
    """
    given = {name: value for name, value in more.items() if value is not None}
    if temperature is None:
        if given:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{flags} without --temperature", why="the text would be greedy", cure="add --temperature")
        return None
    return Sampling(temperature, **given)
