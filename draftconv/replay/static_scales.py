"""Scales of static activations for a search: measured on the half that it searches on, as `quantize` measures them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from draftconv.drafter.drafter import Drafter
from draftconv.quantization.exclusions import WEIGHT, select
from draftconv.quantization.recipes import Recipe
from draftconv.quantization.rounding import input_scale
from draftconv.replay.calibration import input_peaks
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.pruned import pruned_arm
from draftconv.replay.replay import Arm
from draftconv.traces.trace import Trace, TraceEntry


@dataclass(frozen=True, slots=True)
class StaticScales:
    """The largest inputs of a drafter's weights on some requests, and the scales that follow.

    Attributes:
        entries: of the half that is searched.
        arm: the drafter as `quantize` would load it, where it is in memory already: a second one may have no room.
        tokens: rows of a pruned head → the tokens that it keeps: what such a head drafts is what the layers see next.
    """

    drafter: Drafter
    trace: Trace
    entries: Sequence[TraceEntry]
    tokens: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    arm: Arm | None = None
    _peaks: dict[int | None, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    def of(self, recipe: Recipe, rows: int | None) -> dict[str, Tensor]:
        """Module → float32 []; of none where no activations of the recipe are static.

        Args:
            rows: that the head keeps; None keeps all.

        Raises:
            Refused: inputs that are not finite, or nothing but zeros.
            UsageError, BadCheckpoint: as `load_arm` and `replay`.
        """
        schemes = {
            name.removesuffix(WEIGHT): recipe.of(role).inputs
            for name, role in select(recipe, self.drafter.facts).roles.items()
        }
        static = {module: inputs for module, inputs in schemes.items() if inputs is not None and not inputs.dynamic}
        peaks = self._peaks.setdefault(rows, {})
        if missing := [module for module in static if module not in peaks]:
            peaks |= self._measure(missing, rows)
        return {module: input_scale(peaks[module], inputs) for module, inputs in static.items()}

    def _measure(self, modules: Sequence[str], rows: int | None) -> dict[str, Tensor]:
        how = LoadSettings(self.trace.table)  # of `quantize --calibrate`, whose bytes these scales are
        arm = self.arm or load_arm(self.drafter.checkpoint.name, self.drafter, how)
        arm = arm if rows is None else pruned_arm(arm, self.tokens[rows])
        requests = (self.trace.read(entry, arm.boundaries) for entry in self.entries)
        return input_peaks(arm, requests, arm.boundaries, modules)
