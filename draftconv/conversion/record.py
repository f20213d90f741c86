"""What `draftconv.json` says of an output; `provenance` reads it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import draftconv
from draftconv.checkpoint import Checkpoint, Computed, Copy, Hashes
from draftconv.checkpoint.plan import encode
from draftconv.checkpoint.staging import FileDigest
from draftconv.conversion.provenance import FORMAT, Provenance, output_digest
from draftconv.conversion.readers import shared_by
from draftconv.conversion.working_drafter import WorkingDrafter, content_hash
from draftconv.drafter.describe import facts_json
from draftconv.drafter.targets import Target
from draftconv.layouts import spelled
from draftconv.layouts.drafter_reader import readings_json

if TYPE_CHECKING:
    from draftconv.conversion.options import ConvertOptions
    from draftconv.conversion.plan import Conversion


RECORDED: Mapping[str, str] = {"to": "to", "source": "layout"} | {
    name: name
    for name in (
        "target_layers",
        "aux_convention",
        "accept_detected",
        "embed",
        "force",
        "dtype",
        "max_positions",
        "verifier",
        "repairs",
        "shard_size",
        "hash",
        "card",
        "deep",
        "dequantize",
        "pack",
        "unpack",
        "allow_lossy",
        "from_format",
    )
}
"""Key in the record → option; the same options give the same bytes, so keys and their order stay."""


def make_record(
    conversion: Conversion, options: ConvertOptions, target: Target | None, provenance: Provenance | None
) -> dict[str, object]:
    """The record of a conversion: no times, hosts or absolute paths, so equal inputs give equal bytes.

    `completed` and `sealed` finish it once the output's computed tensors and its other files are known.
    """
    drafter, work, layout = conversion.drafter, conversion.work, conversion.layout
    checkpoint = drafter.checkpoint
    chosen = {key: value for key, name in RECORDED.items() if (value := getattr(options, name)) not in (None, ())}
    chosen |= {key: spelled(str(chosen[key])) for key in ("to", "source") if key in chosen}
    if options.float_dtype is not None:
        chosen["dtype"] = options.float_dtype.lower()  # what records have always called it
    renamed: dict[str, list[str]] = {}
    for name in sorted(drafter.names.keys() & conversion.names.keys()):
        renamed.setdefault(drafter.names[name], []).append(conversion.names[name])
    shared = {"shared_by": list(readers)} if (readers := shared_by(layout)) else {}
    left_out = {"left_out": [asdict(left) for left in conversion.left_out]} if conversion.left_out else {}
    quantization = {"quantization": conversion.quantization.record} if conversion.quantization else {}
    pruning = {"pruning": dict(conversion.pruning.record)} if conversion.pruning else {}
    certificate = {"certificate": dict(conversion.certificate)} if conversion.certificate else {}
    return {
        "draftconv": draftconv.__version__,
        "format": FORMAT,
        "layout": layout.id,
        **shared,
        "source": {
            "name": checkpoint.name,
            "revision": checkpoint.revision,
            "layout": drafter.detection.layout,
            "confidence": drafter.detection.confidence,
            "reasons": list(drafter.detection.reasons),
            "aux_convention": options.aux_convention,
            **readings_json(drafter),
            "files": _files(checkpoint),
            "metadata": dict(checkpoint.metadata),
            "config": dict(checkpoint.config),
        },
        "target": {"name": target.name, "layers": target.layers, "family": target.family, "hidden": target.hidden}
        if target
        else None,
        "licenses": [source.record() for source in conversion.terms],
        "engines": [str(verdict.spec) for verdict in conversion.verdicts],
        **left_out,
        "options": {key: _base_names(value) for key, value in chosen.items()},
        **quantization,
        **pruning,
        **certificate,
        "facts": facts_json(work.facts),
        "reasons": dict(drafter.reasons),
        "renamed": {old: ", ".join(new) for old, new in sorted(renamed.items()) if [old] != new},
        "changes": [asdict(change) for change in work.changes],
        "made": _digests_of_made(work, provenance),
        "lm_head_order": list(work.order) if work.order is not None else None,
        "earlier": provenance.handed_on() if provenance else [],
        "findings": list(conversion.findings),
        "warnings": [{"code": p.code, "detail": p.detail} for p in conversion.warnings],
        "not_checked": list(conversion.not_made),
    }


def completed(record: Mapping[str, object], conversion: Conversion, hashes: Hashes) -> dict[str, object]:
    """The record with all that is known once tensors are computed: their hashes, and how they were rounded."""
    canonical = {spelled: name for name, spelled in conversion.names.items()}
    computed = {canonical[name]: digest for name, digest in hashes.tensors.items()}
    digests = {**cast(Mapping[str, str], record["made"]), **computed}
    quantization = {"quantization": conversion.quantization.completed()} if conversion.quantization else {}
    return {**record, **quantization, "made": dict(sorted(digests.items()))}


def sealed(
    record: Mapping[str, object], conversion: Conversion, card: Mapping[str, str], hashes: Hashes
) -> dict[str, object]:
    """The record with all other files of the output, and with the digest that ties it to them."""
    plan = conversion.plan
    small = {**plan.first_files(), **{name: encode(text) for name, text in card.items()}}
    files = {shard.file_name: FileDigest(shard.size, hashes.files[shard.file_name]) for shard in plan.shards()}
    files |= {name: FileDigest.of(data) for name, data in small.items()}
    whole = {**record, "files": {name: digest._asdict() for name, digest in sorted(files.items())}}
    return whole | {"output": output_digest({t.name: t for t in plan.tensors}, conversion.config, whole)}


def _digests_of_made(work: WorkingDrafter, provenance: Provenance | None) -> dict[str, str]:
    """Hashes of the tensors that `verify` cannot judge by the source: attached, repaired, added."""
    declared = {change.what for change in work.changes if change.kind in ("added", "replaced", "repaired")}
    earlier = provenance.made if provenance else {}
    digests = {}
    for name, tensor in sorted(work.tensors.items()):
        if isinstance(tensor.operation, Computed):
            continue  # known once it is written, see `completed`
        if name in earlier and isinstance(tensor.operation, Copy) and name not in declared:
            digests[name] = earlier[name]
        elif name in declared or name in earlier:
            digests[name] = content_hash(tensor)
    return digests


def _files(checkpoint: Checkpoint) -> list[dict[str, object]]:
    """Every file of the source, with the hash of what was read where it was hashed."""
    hashes = {info.name: {"sha256": info.sha256} for info in checkpoint.files if info.sha256}
    return [{"name": info.name, "size": info.size, **hashes.get(info.name, {})} for info in checkpoint.files]


def _base_names(value: object) -> object:
    """Paths in options by base name only: outputs must not tell where they were made."""
    if isinstance(value, (tuple, list)):
        return [f"{code}={Path(path).name}" if path else code for code, _, path in (v.partition("=") for v in value)]
    return value
