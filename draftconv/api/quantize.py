"""Quantize a drafter into the format that an engine really runs.

recipe → form on each engine named → read → which tensors → plan, checked as the engine would → (write)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.options import QuantizeOptions
from draftconv.conversion.plan import Conversion, plan_drafter, refuse_place
from draftconv.conversion.quantization_plan import QuantizationPlan, QuantizationRequest, plan_quantization
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.targets import find_target
from draftconv.options import Place, takes

__all__ = ["Quantization", "QuantizeOptions", "prepare", "quantize"]


@dataclass(frozen=True, slots=True)
class Quantization:
    """A quantization that is decided and checked, and not yet written."""

    decided: QuantizationPlan
    conversion: Conversion

    def write(self, out: str | Path, *, overwrite: bool = False, progress: Callable[[int], None] | None = None) -> None:
        """Write the directory `out`, which appears whole or not at all; see `Conversion.write`."""
        self.conversion.write(out, overwrite=overwrite, progress=progress)


@takes(QuantizeOptions)
def quantize(source: Place, out: Place, options: QuantizeOptions) -> Quantization:
    """Quantize a drafter and write it.

    Args:
        source: directory, weights file or Hub id. `out`: directory to make.

    Raises:
        DraftconvError: see `prepare`; WriteError when the output cannot be written.
    """
    refuse_place(source, out, overwrite=options.overwrite)
    quantization = prepare(source, options)
    quantization.write(out, overwrite=options.overwrite, progress=options.progress)
    return quantization


def prepare(source: Place, options: QuantizeOptions, *, download: bool = True) -> Quantization:
    """Decide and check a quantization without writing anything.

    Raises:
        Refused: an engine has no form of the recipe or no kernel for the drafter's sizes, the recipe quantizes
            the head, the drafter is quantized already, the backend does not have the scheme, or what would be
            written would not be read rightly.
        Undecided: the source can be read in several ways.
        UsageError: unknown recipe or engine, several engines that need different files, no calibration,
            a backend whose package is missing or does not start.
    """
    asked = QuantizationRequest.of(options)
    target = find_target(options.convert.target, options.convert.target_layers)
    drafter = options.convert.said.read(open_checkpoint(source, download=download), target)
    decided = plan_quantization(drafter, target, asked)
    findings = check_drafter(drafter, target, level="deep" if options.convert.deep else "sample")
    return Quantization(decided, plan_drafter(drafter, findings, target, decided.request))
