"""Prove that an output is its source: every bit compared, every difference made again.

Both directories are opened afresh and read by their own layouts. What the `draftconv.json` of the output declares is
made again from the source, by the passes that made it, and the output must have its bits and its facts. What cannot
be made again, because only the record says it, does not pass; see `draftconv.verification`.
"""

from __future__ import annotations

from dataclasses import replace

from draftconv.attestation.statement import refuse_statement, write_statement
from draftconv.attestation.verification import verification_statement
from draftconv.checkpoint import open_checkpoint
from draftconv.conversion.provenance import FILE, read_provenance
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import find_target
from draftconv.layouts.drafter_reader import drafter_readers
from draftconv.options import Place, several, takes
from draftconv.verification.claims import Claims
from draftconv.verification.compared import ComparedItem
from draftconv.verification.config_keys import compare_config
from draftconv.verification.directory import check_directory
from draftconv.verification.facts import compare_facts
from draftconv.verification.options import VerifyOptions
from draftconv.verification.recorded_steps import Evidence
from draftconv.verification.remaking import remake
from draftconv.verification.result import Record, Verification
from draftconv.verification.tensors import Compared, compare_tensors

__all__ = ["ComparedItem", "Verification", "VerifyOptions", "verify"]


@takes(VerifyOptions)
def verify(out: Place, against: Place, options: VerifyOptions) -> Verification:
    """Compare two drafters tensor by tensor and fact by fact.

    Args:
        out: the output. `against`: its source. What the conversion was told and its record can only claim (target,
            layout, convention, a path, a trace) has to be given again.

    Raises:
        Undecided: one of the two can be read in several ways.
        BadCheckpoint, NotADrafter: one of the two cannot be read.
        WriteError: the statement that `attest` names exists, or cannot be written.
        UsageError: it would lie in one of the two, a repair without a path, or an unknown engine or target.
    """
    refuse_statement(options.attest, out, against)
    target = find_target(options.target, options.target_layers)
    evidence = Evidence.of(options, target)
    source_reading, out_reading = drafter_readers(
        (against, out), options.layout, options.aux_convention, accept_detected=options.accept_detected
    )
    ours, theirs = (open_checkpoint(spec, download=True) for spec in (out, against))
    provenance = read_provenance(ours)
    lineage = provenance.since(theirs) if provenance else None
    result, source = out_reading.read(ours, target), source_reading.read(theirs, target)
    evidence = replace(evidence, tokens=_drafted_tokens(result))
    remade = remake(source, lineage, evidence)
    told = next((step.target for step in lineage.steps if step.target), None) if lineage and not target else None
    of_target = source_reading.read(theirs, told).facts if told else None
    claims = Claims(provenance, lineage, evidence, remade.fault, of_target)
    record: Record = "absent" if FILE not in ours.sidecars else "of another source" if provenance else "not believed"
    edited = not lineage and record == "not believed"
    tensors = tuple(compare_tensors(Compared(result, source, remade, claims), options.progress or (lambda _, __: None)))
    facts = tuple(compare_facts(result, source, remade, claims))
    directory = (
        *check_directory(result, target, remade, provenance, several(options.engines), edited=edited),
        *compare_config(result, source, remade, claims, facts),
    )
    rows = (tensors, facts, directory)
    cures = tuple(claims.cures([row for part in rows for row in part]))
    found = Verification(*rows, "believed" if lineage else record, result, source, cures)
    if options.attest is not None:
        write_statement(options.attest, verification_statement(found, options))
    return found


def _drafted_tokens(out: Drafter) -> tuple[int, ...] | None:
    """The tokens that a reduced head has rows for, ascending; None where there is no map that can be used."""
    mapped = out.maps.map if out.maps and out.facts.reduced_vocab else None
    return None if mapped is None else tuple(sorted(mapped.ids))
