"""How an output was made: SLSA's provenance predicate.

Source: https://slsa.dev/spec/v1.0/provenance; read. Its times are optional, and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import draftconv
from draftconv.attestation.inputs import files_of, subjects, target_file, text_files, trace_file
from draftconv.attestation.statement import PROGRAM, ResourceDescriptor, Statement, program, write_statement
from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.checkpoint import read_sidecar
from draftconv.conversion.options import ConvertOptions, QuantizeOptions
from draftconv.conversion.plan import Conversion
from draftconv.conversion.provenance import FILE
from draftconv.conversion.pruning.options import PruneOptions
from draftconv.drafter.checks import target_table
from draftconv.drafter.targets import EMBED_NAMES, HEAD_NAMES, Target, find_target
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.options import several

PREDICATE = "https://slsa.dev/provenance/v1"

Asked: TypeAlias = ConvertOptions | QuantizeOptions | PruneOptions
COMMANDS: Mapping[type, str] = {ConvertOptions: "convert", QuantizeOptions: "quantize", PruneOptions: "prune"}
"""Whose options they are."""

TABLES = {EMBEDDING: EMBED_NAMES, HEAD: HEAD_NAMES}
"""What may be taken from the target, and what that calls it."""


def attest_conversion(conversion: Conversion, options: Asked, out: Path) -> None:
    """Say how a directory that was just written was made, in the file that the options name.

    Raises:
        BadCheckpoint: an input is gone. WriteError: the file cannot be written.
    """
    if options.attest is not None:
        write_statement(options.attest, provenance_statement(conversion, options, out))


def provenance_statement(conversion: Conversion, options: Asked, out: Path) -> Statement:
    """The statement of a directory that was just written: inputs, and all options that shape it."""
    record = read_sidecar(out, FILE)
    command = COMMANDS[type(options)]
    asked = {key: record[key] for key in ("options", "quantization", "pruning", "target") if record.get(key)}
    source = conversion.drafter.checkpoint
    parameters = {"command": command, "source": source.name, "revision": source.revision, **asked}
    predicate = {
        "buildDefinition": {
            "buildType": f"{PROGRAM}#{command}",
            "externalParameters": {key: value for key, value in parameters.items() if value is not None},
            "internalParameters": {},
            "resolvedDependencies": [item.document() for item in _inputs(conversion, options)],
        },
        "runDetails": {"builder": {"id": program(), "version": {"draftconv": draftconv.__version__}}},
    }
    return Statement(tuple(subjects(out)), PREDICATE, predicate)


def _inputs(conversion: Conversion, options: Asked) -> Iterator[ResourceDescriptor]:
    yield from files_of(conversion.drafter.checkpoint)
    if (target := find_target(options.target, options.target_layers)) is not None:
        yield from target_file(target, tables=_table_files(conversion, target))
    converted = options if isinstance(options, ConvertOptions) else options.convert
    for _, _, path in (repair.partition("=") for repair in several(converted.repairs)):
        if path:
            yield from files_of(open_checkpoint(Path(path)))
    if not isinstance(options, ConvertOptions) and options.trace is not None:
        yield trace_file(Path(options.trace))
    if isinstance(options, PruneOptions):
        yield from text_files(options.texts)


def _table_files(conversion: Conversion, target: Target) -> Iterator[Path]:
    """The files whose embedding or head was attached, or that the drafter's was compared with."""
    if target.path is None or not target.has_weights:
        return
    changed = {change.what for change in conversion.changes if (change.kind, change.what) != ("pruned", HEAD)}
    for name in TABLES.keys() & changed:
        if (table := target_table(target, TABLES[name])) is not None:
            yield target.path / table.file.name
