"""Everything that a person may say to `verify`: how both are read, and what its record can only claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftconv.conversion.options import ConvertOptions, QuantizeOptions
from draftconv.conversion.pruning.options import PruneOptions
from draftconv.options import (
    ACCEPT_DETECTED,
    ATTEST,
    FROM_FORMAT,
    TARGET,
    TARGET_LAYERS,
    Place,
    Several,
    aux_convention_of_each,
    layout_of_each,
    option,
    python_only,
    several,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How an output and its source are read, and what the conversion was given besides."""

    target: Place | None = option(None, TARGET)
    target_layers: int | None = option(None, TARGET_LAYERS)
    engines: Several = option(
        (),
        "Who serves it, as ENGINE[@VERSION][:HARDWARE]; may be repeated.  [default: whom its layout is for]",
        flag="--for",
        metavar="ENGINE",
    )
    max_positions: int | None = option(
        None, "The max_position_embeddings that the conversion was told to write.", metavar="N", least=1
    )
    verifier: str | None = option(None, "The name that the conversion was told to open the target by.", metavar="NAME")
    repairs: Several = option(
        (),
        "The checkpoint that a repair of the conversion took rows from (repeatable).",
        flag="--repair",
        metavar="CODE=PATH",
    )
    calibrate: Place | None = option(None, "The trace that the quantization was calibrated on.", metavar="TRACE")
    force: bool = option(False, "Take it that embed_tokens was dropped unproven.")
    layout: Several = option((), layout_of_each("SOURCE"))
    aux_convention: Several = option((), aux_convention_of_each("SOURCE"))
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    from_format: str | None = option(None, FROM_FORMAT)
    attest: Place | None = option(None, ATTEST)
    progress: Callable[[int, int], None] | None = python_only(None, "called with the bytes compared so far and in all")


def said_again(options: ConvertOptions | QuantizeOptions | PruneOptions) -> VerifyOptions:
    """What `verify` has to be told of a conversion again, because its record can only claim it."""
    converted = options if isinstance(options, ConvertOptions) else options.convert
    return VerifyOptions(
        target=converted.target,
        target_layers=converted.target_layers,
        max_positions=converted.max_positions,
        verifier=converted.verifier,
        repairs=tuple(repair for repair in several(converted.repairs) if "=" in repair),
        calibrate=options.calibrate if isinstance(options, QuantizeOptions) else None,
        force=converted.force,
        layout=(converted.layout,) if converted.layout else (),
        aux_convention=(converted.aux_convention,) if converted.aux_convention else (),
        from_format=converted.from_format,
    )
