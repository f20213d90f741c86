"""The commands that make a certified drafter's bytes again, each part by the command that is for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftconv.conversion.options import ConvertOptions, QuantizeOptions
from draftconv.conversion.pruning.options import PruneOptions
from draftconv.options import arguments_of
from draftconv.verification.options import VerifyOptions, said_again

RECIPE = "recipe.yaml"
"""What a report calls the recipe."""
AGAIN = "again"
"""What the last of the commands writes."""


@dataclass(frozen=True, slots=True)
class Again:
    """How a certified drafter is made again.

    Attributes:
        source: the drafter that the search began with. `pruned`: what its pruned form is called.
        pruning: how its head was pruned; None where it was not.
        last: how what came of that is quantized, or converted for the engine where nothing is quantized.
        target: what the trace calls it. A search reads the drafter with it, so the last command needs it too.
    """

    source: str
    pruned: str
    pruning: PruneOptions | None
    last: QuantizeOptions | ConvertOptions
    target: str

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """In the order in which they are given, where the recipe lies."""
        name = "quantize" if isinstance(self.last, QuantizeOptions) else "convert"
        last = self.last if self.last.target else replace(self.last, target=self.target)
        if self.pruning is None:
            return (("draftconv", name, self.source, AGAIN, *arguments_of(last)),)
        return (
            ("draftconv", "prune", self.source, self.pruned, *arguments_of(self.pruning)),
            ("draftconv", name, self.pruned, AGAIN, *arguments_of(last)),
        )

    @property
    def proof(self) -> VerifyOptions:
        """What `verify` has to be told, with the source, of what was written."""
        if self.pruning is None:
            return said_again(self.last)
        calibrate = self.last.calibrate if isinstance(self.last, QuantizeOptions) else None
        return replace(said_again(self.pruning), calibrate=calibrate)
