"""What verifying an output found: in-toto's test-result predicate.

Source: https://github.com/in-toto/attestation, `spec/predicates/test-result.md`, 0.1.0; read. What only a record
claims counts as failed, so that no policy takes it for proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Literal

from draftconv.attestation.inputs import files_of, target_file, trace_file
from draftconv.attestation.statement import ResourceDescriptor, Statement, program
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.targets import find_target
from draftconv.options import option_of, several
from draftconv.verification.compared import Outcome
from draftconv.verification.options import VerifyOptions
from draftconv.verification.result import Verification

PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
LISTS: Mapping[Outcome, Literal["passedTests", "failedTests"]] = {
    "equal": "passedTests",
    "declared": "passedTests",
    "claimed": "failedTests",
    "different": "failedTests",
}
NOT_TOLD = {"attest", "target", "calibrate", "repairs", "progress"}
"""Options that name files: those are listed with their digests."""


def verification_statement(found: Verification, options: VerifyOptions) -> Statement:
    """The statement of a verification that was just made."""
    tests: dict[str, list[str]] = {"passedTests": [], "warnedTests": [], "failedTests": []}
    for part, rows in (("tensor", found.tensors), ("fact", found.facts), ("directory", found.directory)):
        for row in rows:
            tests[LISTS[row.outcome]].append(f"{part}: {row.what}: {row.outcome}")
    predicate = {
        "result": "PASSED" if found.passed else "FAILED",
        "configuration": [item.document() for item in _configuration(found, options)],
        **tests,
    }
    return Statement(tuple(_subjects(found)), PREDICATE, predicate)


def _subjects(found: Verification) -> Iterator[ResourceDescriptor]:
    """The files of the output, by their names in it."""
    output = found.output.checkpoint
    for item in files_of(output, everything=True):
        if item.sha256 is not None:
            yield ResourceDescriptor(item.name.removeprefix(f"{output.name}/"), item.sha256, item.uri)


def _configuration(found: Verification, options: VerifyOptions) -> Iterator[ResourceDescriptor]:
    chosen = {field.name: getattr(options, field.name) for field in fields(options) if option_of(field)}
    asked = {name: _plain(value) for name, value in chosen.items() if value and name not in NOT_TOLD}
    yield ResourceDescriptor("draftconv verify", uri=program(), annotations={"options": asked})
    yield from files_of(found.source.checkpoint)
    if (target := find_target(options.target, options.target_layers)) is not None:
        yield from target_file(target)
    for _, _, path in (repair.partition("=") for repair in several(options.repairs)):
        yield from files_of(open_checkpoint(Path(path)))
    if options.calibrate is not None:
        yield trace_file(Path(options.calibrate))


def _plain(value: object) -> object:
    """An option without paths: what stands before `=` names a directory."""
    if isinstance(value, tuple | list):
        return [str(item).rpartition("=")[2] for item in value]
    return value.rpartition("=")[2] if isinstance(value, str) else value
