"""Convert a drafter from one layout to another."""

from __future__ import annotations

from pathlib import Path

from draftconv.attestation.provenance import attest_conversion
from draftconv.attestation.statement import refuse_statement
from draftconv.checkpoint import Checkpoint, open_checkpoint
from draftconv.conversion.changed_drafter import writer_of
from draftconv.conversion.options import ConvertOptions
from draftconv.conversion.plan import Conversion, plan_drafter, refuse_place
from draftconv.conversion.request import ConversionRequest
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.targets import find_target
from draftconv.layouts import layout
from draftconv.options import Place, takes

__all__ = ["Conversion", "ConvertOptions", "convert", "plan_conversion", "prepare", "refuse_place"]


@takes(ConvertOptions)
def convert(source: Place, out: Place, options: ConvertOptions) -> Conversion:
    """Convert a drafter and write it.

    Args:
        source: directory, weights file or Hub id. `out`: directory to make.

    Raises:
        DraftconvError: see `plan_conversion`; WriteError when the output cannot be written.
    """
    refuse_place(source, out, overwrite=options.overwrite)
    refuse_statement(options.attest, out)
    conversion = prepare(source, options)
    conversion.write(out, overwrite=options.overwrite, progress=options.progress)
    attest_conversion(conversion, options, Path(out))
    return conversion


def prepare(source: Place, options: ConvertOptions | None = None, *, download: bool = True) -> Conversion:
    """Open a source and plan its conversion; `download` fetches the weights of a Hub repository first."""
    options = options or ConvertOptions()
    if options.to is not None:
        writer_of(layout(options.to), options.to)
    return plan_conversion(open_checkpoint(source, download=download, hashed=options.hash and download), options)


def plan_conversion(checkpoint: Checkpoint, options: ConvertOptions | None = None) -> Conversion:
    """Decide and check a conversion without reading weights.

    Raises:
        Refused: the drafter has problems that nobody asked to repair, the layout or its engines
            cannot express it, or it is quantized.
        Undecided, UsageError: an option is missing or wrong; the source can be read in several ways.
        BadCheckpoint, NotADrafter: the source cannot be read.
    """
    options = options or ConvertOptions()
    target = find_target(options.target, options.target_layers)
    drafter = options.reading.read(checkpoint, target)
    findings = check_drafter(drafter, target, level="deep" if options.deep else "sample")
    return plan_drafter(drafter, findings, target, ConversionRequest(options))
