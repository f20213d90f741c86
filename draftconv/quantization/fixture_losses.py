"""What shipped recipes lost on the trained fixtures: `recipes/losses.json`, written by `scripts/recipe-loss`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from draftconv.drafter.shipped_files import recipes as shipped_directory

FILE = "losses.json"


@dataclass(frozen=True, slots=True)
class FixtureLoss:
    """The ratio of accept lengths to the 16-bit drafters, pooled over the fixtures, with its 95 % interval.

    Attributes:
        spread: sd(ψ) over prompts, as in `report.statistics.Estimate`. `tokens`: of a prompt's text, of all fixtures.
    """

    ratio: float
    low: float
    high: float
    spread: float
    tokens: float

    def __str__(self) -> str:
        return f"{self.ratio:.4f} ± {(self.high - self.low) / 2:.4f}"

    def document(self) -> dict[str, float]:
        """For a program."""
        return {"ratio": self.ratio, "low": self.low, "high": self.high}

    def spread_at(self, tokens: float) -> float:
        """sd(ψ) over prompts whose texts have so many tokens: it falls with their root."""
        return self.spread * math.sqrt(self.tokens / tokens)


def fixture_losses() -> Mapping[str, FixtureLoss]:
    """Recipe → what it lost, of those that were measured."""
    data = json.loads(shipped_directory().joinpath(FILE).read_text(encoding="utf-8"))
    return {name: FixtureLoss(**row) for name, row in data.items()}


def fixture_losses_text(losses: Mapping[str, FixtureLoss]) -> str:
    """The file of these losses."""
    rows = {name: {key: round(value, 6) for key, value in asdict(loss).items()} for name, loss in losses.items()}
    return json.dumps(rows, indent=1, sort_keys=True) + "\n"
