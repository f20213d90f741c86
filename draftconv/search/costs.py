"""What every recipe costs and brings on one drafter and one engine, told before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftconv.checkpoint.text import size
from draftconv.display import Block, Column, Displayed, named, table
from draftconv.engines.offers import Offer
from draftconv.quantization.fixture_losses import FixtureLoss
from draftconv.report.statistics import Estimate
from draftconv.search.planning import LeftOutChoice, PlannedDrafter


@dataclass(frozen=True, slots=True)
class RecipeCost:
    """One recipe on this drafter.

    Attributes:
        offer: what is multiplied. `fixtures`: what it lost on the trained fixtures, where that was measured.
        replayed: what it loses here, on prompts that it was not calibrated on; None without a trace, and where
            nothing simulates it.
        warnings: what is to be known of what was replayed.
    """

    offer: Offer
    planned: PlannedDrafter
    fixtures: FixtureLoss | None
    replayed: Estimate | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class RecipeCosts(Displayed):
    """Every shipped recipe on one drafter and engine.

    Attributes:
        whole: the drafter as it is. `costs`: what runs, the least bytes per draft step last. `left_out`: what does not.
        warnings: what speaks against the trace.
        depth: K, for the mean over a round.
    """

    drafter: str
    engine: str
    depth: int
    whole: PlannedDrafter
    costs: tuple[RecipeCost, ...]
    left_out: tuple[LeftOutChoice, ...]
    prompts: int = 0
    warnings: tuple[str, ...] = ()

    def brief(self) -> Iterator[str]:
        """Whom it is for, and how many recipes run there."""
        yield f"{named(self.drafter)} for {self.engine}"
        yield f"{len(self.costs)} recipes run"

    def blocks(self) -> Iterator[Block]:
        """Recipes that run, with what they cost; then those that do not."""
        yield from (f"Warning: {line}" for line in self.warnings)
        yield table(
            f"What {self.drafter} becomes on {self.engine}",
            self._note(),
            self._columns(),
            [self._as_it_is(), *map(self._row, self.costs)],
        )
        yield from dict.fromkeys(f"{cost.offer.recipe}: {said}" for cost in self.costs for said in cost.warnings)
        if self.left_out:
            rows = ((choice.name, choice.why) for choice in self.left_out)
            yield table(f"What does not run on {self.engine}", "", ("recipe", "why"), rows)

    def document(self) -> dict[str, object]:
        """The same for a program."""
        return {
            "drafter": self.drafter,
            "engine": self.engine,
            "num_speculative_tokens": self.depth,
            "warnings": list(self.warnings),
            "as_it_is": {"file_bytes": self.whole.file_bytes, "bytes_per_step": self._read(self.whole)},
            "recipes": [
                {
                    "recipe": cost.offer.recipe,
                    "file_bytes": cost.planned.file_bytes,
                    "bytes_per_step": self._read(cost.planned),
                    "weights": cost.offer.weights,
                    "activations": cost.offer.activations,
                    "executed": cost.offer.executed,
                    "evidence": cost.offer.evidence,
                    "fixtures": None if cost.fixtures is None else cost.fixtures.document(),
                    "replayed": None if cost.replayed is None else _ratio(cost.replayed),
                    "warnings": list(cost.warnings),
                }
                for cost in self.costs
            ],
            "left_out": [{"recipe": choice.name, "why": choice.why} for choice in self.left_out],
        }

    def _note(self) -> str:
        note = "Losses on fixtures are those of the trained ones that draftconv was measured on, not of this drafter."
        if self.prompts:
            note += f" Ratios here are of {self.prompts} prompts, on which nothing was calibrated, with 95 % intervals."
        return note

    def _columns(self) -> Sequence[str | Column]:
        here = ["accept length here, of 16 bit's"] if self.prompts else []
        figures = [Column("file", figures=True), Column(f"bytes per draft step, K = {self.depth}", figures=True)]
        return ("recipe", *figures, "multiplied: weights x activations", "kernel", "on fixtures", *here)

    def _as_it_is(self) -> Sequence[object]:
        here = [""] if self.prompts else []
        return ("as it is", size(self.whole.file_bytes), self._bytes(self.whole), "16 bit x 16 bit", "", "", *here)

    def _row(self, cost: RecipeCost) -> Sequence[object]:
        share = 100 * cost.planned.file_bytes / self.whole.file_bytes
        fixtures = "not measured" if cost.fixtures is None else str(cost.fixtures)
        here: Sequence[object] = ("not simulated",) if self.prompts else ()
        if cost.replayed is not None:
            interval = cost.replayed.interval
            here = ((f"{cost.replayed.ratio:.4f}", f"{interval.low:.4f} to {interval.high:.4f}"),)
        return (
            cost.offer.recipe,
            f"{size(cost.planned.file_bytes)}, {share:.0f} %",
            self._bytes(cost.planned),
            cost.offer.multiplied,
            cost.offer.known,
            fixtures,
            *here,
        )

    def _bytes(self, planned: PlannedDrafter) -> str:
        return f"{size(round(self._read(planned)))}, {100 * self._read(planned) / self._read(self.whole):.0f} %"

    def _read(self, planned: PlannedDrafter) -> float:
        return planned.reads.per_step(self.depth)


def _ratio(found: Estimate) -> dict[str, object]:
    return {"ratio": found.ratio, "interval": [found.interval.low, found.interval.high], "prompts": found.clusters}
