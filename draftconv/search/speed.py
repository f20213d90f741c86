"""What the drafters of a search would bring in tokens per second: the model of `accept --speed` with their bytes.

A draft step is taken to last as long as its weights take to be read, or where the steps of the whole drafter are known,
to shrink with the bytes that it reads. Launches and arithmetic do not shrink, so a small drafter is slower than this.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.drafter.step_bytes import StepBytes
from draftconv.live.step_times import ServerSpeed
from draftconv.report.acceptance.speed import EVIDENCE, SpeedAtDepth, StepCost, speed_at
from draftconv.report.intervals import Measured


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """A server, and the drafter that a search starts from.

    Attributes:
        name, content: of the drafter as it is. `whole`: what it reads. `depth`: K.
    """

    server: ServerSpeed
    name: str
    content: str
    whole: StepBytes
    depth: int

    @property
    def known(self) -> tuple[StepCost, ...]:
        """What the drafter as it is costs, under every load.

        Raises:
            UsageError: nothing tells what its draft steps cost.
        """
        return self.server.costs(self.name, self.content, self.whole)

    def of(self, reads: StepBytes, length: Measured) -> tuple[SpeedAtDepth, ...]:
        """What a drafter of these bytes and this accept length would bring, under every load."""
        costs = self.server.costs_of_smaller(self.name, self.content, self.whole, reads, self.depth)
        return tuple(speed_at(cost, self.depth, length) for cost in costs)

    def sentence(self) -> str:
        """What the figures rest on."""
        rests = "; ".join(f"{c.concurrency} at a time: {c.source} ({EVIDENCE[c.evidence]})" for c in self.known)
        return (
            f"Speed-ups are estimates over no drafter, with K = {self.depth}: a draft step is taken to shrink with the "
            f"bytes that it reads, which launches and arithmetic do not. Of the drafter as it is, {rests}. Intervals "
            "are of the accept length alone."
        )
