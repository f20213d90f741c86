"""What config.json and the files beside it say of quantized weights, beside what the steps of the record say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from draftconv.checkpoint import QUANT_FILE
from draftconv.conversion.planned_output import QUANTIZATION, planned_checkpoint
from draftconv.conversion.working_drafter import ACTIVATIONS, WorkingDrafter
from draftconv.drafter.drafter import Drafter
from draftconv.errors import DraftconvError
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.verification.claims import Claims, claimed
from draftconv.verification.compared import ComparedItem
from draftconv.verification.remaking import Remade

if TYPE_CHECKING:
    from draftconv.quantization.quantized_weights import QuantizedWeights

Stored = tuple["QuantizedWeights | None", "QuantizedWeights | None"]


def stated(out: Drafter, remade: Remade, claims: Claims, stored: Stored) -> Iterator[ComparedItem]:
    """What is said of the weights as a whole, and what their inputs are rounded to.

    Args:
        stored: how the weights of the output and of the source are.
    """
    mine, theirs = stored
    packed = remade.work.packed
    if mine and theirs and mine.activations != theirs.activations:
        how = f"{mine.activations} in the output, {theirs.activations} in the source"
        why = remade.why(ACTIVATIONS, "fact")
        item = ComparedItem(ACTIVATIONS, "declared", why) if why and packed else claims.fact(ACTIVATIONS)
        yield item or ComparedItem(ACTIVATIONS, "different", how)
    if packed is None:
        return
    files: Mapping[str, tuple[object, object]] = {
        f"config.json: {QUANTIZATION}": (out.checkpoint.config.get(QUANTIZATION), dict(packed.config)),
        **{name: (out.checkpoint.sidecars.get(name), said) for name, said in packed.sidecars.items()},
    }
    if QUANT_FILE in out.checkpoint.sidecars and QUANT_FILE not in packed.sidecars:
        files = {**files, QUANT_FILE: (out.checkpoint.sidecars[QUANT_FILE], None)}
    for what, (ours_said, wanted) in files.items():
        if ours_said != wanted:
            how = "not what the recorded steps write of these weights"
            yield (
                claimed(what, "module names, which the target decides")
                if claims.lacks_target
                else ComparedItem(what, "different", how)
            )


def quantization_of(out: Drafter, work: WorkingDrafter) -> str | None:
    """What a reader would call the quantization that was made again; None where there is none."""
    if work.packed is None:
        return work.facts.quantization
    names = {name: out.names.get(name, name) for name in work.tensors}
    config = {**out.checkpoint.config, QUANTIZATION: dict(work.packed.config)}
    try:
        planned = planned_checkpoint(work, names, config, out.checkpoint.metadata)
        return read_drafter(planned, ReadOptions()).facts.quantization
    except DraftconvError:
        return None
