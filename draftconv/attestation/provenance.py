"""How an output was made: SLSA's provenance predicate.

Source: https://slsa.dev/spec/v1.0/provenance; read. Its times are optional, and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import draftconv
from draftconv.attestation.inputs import files_of, subjects, target_file, trace_file
from draftconv.attestation.statement import PROGRAM, ResourceDescriptor, Statement, program, write_statement
from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.checkpoint import read_sidecar
from draftconv.conversion.options import ConvertOptions, QuantizeOptions
from draftconv.conversion.passes.embedding import EMBEDDING
from draftconv.conversion.plan import Conversion
from draftconv.conversion.provenance import FILE
from draftconv.drafter.checks import target_table
from draftconv.drafter.targets import EMBED_NAMES, Target, find_target
from draftconv.options import several

PREDICATE = "https://slsa.dev/provenance/v1"


def attest_conversion(conversion: Conversion, options: ConvertOptions | QuantizeOptions, out: Path) -> None:
    """Say how a directory that was just written was made, in the file that the options name.

    Raises:
        BadCheckpoint: an input is gone. WriteError: the file cannot be written.
    """
    if options.attest is not None:
        write_statement(options.attest, provenance_statement(conversion, options, out))


def provenance_statement(conversion: Conversion, options: ConvertOptions | QuantizeOptions, out: Path) -> Statement:
    """The statement of a directory that was just written: inputs, and all options that shape it."""
    record = read_sidecar(out, FILE)
    command = "quantize" if isinstance(options, QuantizeOptions) else "convert"
    asked = {key: record[key] for key in ("options", "quantization", "target") if record.get(key)}
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


def _inputs(conversion: Conversion, options: ConvertOptions | QuantizeOptions) -> Iterator[ResourceDescriptor]:
    yield from files_of(conversion.drafter.checkpoint)
    if (target := find_target(options.target, options.target_layers)) is not None:
        yield from target_file(target, table=_table_file(conversion, target))
    converted = options if isinstance(options, ConvertOptions) else options.convert
    for _, _, path in (repair.partition("=") for repair in several(converted.repairs)):
        if path:
            yield from files_of(open_checkpoint(Path(path)))
    if isinstance(options, QuantizeOptions) and options.trace is not None:
        yield trace_file(options.trace)


def _table_file(conversion: Conversion, target: Target) -> Path | None:
    """The file whose embedding was attached, or that the drafter's was compared with."""
    touched = any(change.what == EMBEDDING for change in conversion.changes)
    table = target_table(target, EMBED_NAMES) if touched and target.has_weights else None
    return target.path / table.file.name if table is not None and target.path is not None else None
