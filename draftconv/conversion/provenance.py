"""`draftconv.json`: what an output was made from, how, and everything that changed.

The file carries no time, host or absolute path: the same input and options give the same
bytes. Its last key, `output`, is a digest over the record itself, config.json and the
tensor headers, so that a record which was edited, or copied from another directory, is
not believed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from draftconv import limits
from draftconv.checkpoint import QUANT_FILE, Checkpoint, PlannedTensor, TensorRef, open_checkpoint, read_sidecar
from draftconv.checkpoint.staging import FileDigest, OwnershipMark
from draftconv.checkpoint.weights import is_weights
from draftconv.conversion.working_drafter import Change
from draftconv.drafter.config import Config
from draftconv.drafter.targets import Family, Target
from draftconv.errors import DraftconvError

FILE = "draftconv.json"
FORMAT = 1
SMALL = ("config.json", "model.safetensors.index.json", QUANT_FILE, "README.md")
"""What else than weights and the record an output may hold."""

Tensors = Mapping[str, PlannedTensor | TensorRef]


@dataclass(frozen=True, slots=True)
class Origin:
    """One source in an output's history: what it was, and what was changed on the way from it."""

    data: Mapping[str, object]

    @property
    def source(self) -> Config:
        return Config(self.data, FILE).section("source")

    @property
    def config(self) -> Mapping[str, object]:
        """The source's config.json, verbatim."""
        return self.source.section("config").data

    @property
    def changes(self) -> tuple[Change, ...]:
        rows = cast(Sequence[Mapping[str, str]], self.data["changes"])
        return tuple(Change(change["kind"], change["what"], change["why"]) for change in rows)  # type: ignore[arg-type]

    @property
    def quantization(self) -> Config | None:
        """How weights were quantized on the way from it; None where they were not, or the record does not tell."""
        section = Config(self.data, FILE).section("quantization")
        return section if section.data else None

    @property
    def pruned(self) -> bool:
        """Whether rows of the head were left out on the way from it."""
        return self.data.get("pruning") is not None

    @property
    def options(self) -> Config | None:
        """What was asked for; None where a record of an early version does not tell."""
        section = Config(self.data, FILE).section("options")
        return section if section.data else None

    @property
    def shared_by(self) -> tuple[str, ...]:
        """The engines whose portable layout was written, where these are not all."""
        return Config(self.data, FILE).texts("shared_by") or ()

    @property
    def target(self) -> Target | None:
        """The target that the conversion was told of."""
        section = Config(self.data, FILE).section("target")
        layers = section.size("layers")
        if layers is None:
            return None
        family: Family | None = next((f for f in get_args(Family) if f == section.text("family")), None)
        return Target(section.text("name") or "", layers, family, hidden=section.size("hidden"))

    @property
    def order(self) -> tuple[int, ...] | None:
        """Source row of each row of lm_head, when they were permuted."""
        return Config(self.data, FILE).integers("lm_head_order")


@dataclass(frozen=True, slots=True)
class Lineage:
    """The way from one source in the history to the output: one conversion or several."""

    origin: Origin
    steps: tuple[Origin, ...]
    """The newest first; the last one is `origin`."""

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(change for step in self.steps for change in step.changes)

    @property
    def order(self) -> tuple[int, ...] | None:
        """Row of that source behind each row of lm_head now, when any step permuted them and none left any out."""
        if any(step.pruned for step in self.steps):
            return None
        composed: tuple[int, ...] | None = None
        for step in self.steps:
            if (order := step.order) is not None:
                if composed is not None and len(composed) != len(order):
                    return None
                composed = order if composed is None else tuple(order[row] for row in composed)
        return composed


@dataclass(frozen=True, slots=True)
class Provenance:
    """A `draftconv.json` that belongs to the directory it was found in."""

    data: Mapping[str, object]

    @property
    def history(self) -> tuple[Origin, ...]:
        """The direct source first, then what that was made from, and so on."""
        earlier = cast(Sequence[Mapping[str, object]], self.data.get("earlier") or [])
        return (Origin(self.data), *(Origin(entry) for entry in earlier))

    @property
    def made(self) -> Mapping[str, str]:
        """SHA-256 of every tensor that cannot be had from the sources alone, by canonical name."""
        return cast(Mapping[str, str], self.data.get("made") or {})

    @property
    def engines(self) -> tuple[str, ...] | None:
        """The engines that were asked before it was written; None in records that do not tell."""
        return Config(self.data, FILE).texts("engines") if "engines" in self.data else None

    @property
    def left_out(self) -> tuple[str, ...]:
        """The engines that it says it is not for."""
        rows = cast(Sequence[Mapping[str, object]], self.data.get("left_out") or [])
        return tuple(str(row.get("engine")) for row in rows)

    def since_layout(self, *names: str) -> Lineage | None:
        """The way from the newest source that was in one of these layouts."""
        return self._since([origin.source.text("layout") in names for origin in self.history])

    def since(self, checkpoint: Checkpoint) -> Lineage | None:
        """The way from this checkpoint, known by its config.json; None when it is not in the history."""
        config = _canonical_json(checkpoint.config)
        return self._since([_canonical_json(origin.config) == config for origin in self.history])

    def _since(self, fits: Sequence[bool]) -> Lineage | None:
        history = self.history
        return next((Lineage(history[i], history[: i + 1]) for i, fit in enumerate(fits) if fit), None)

    def handed_on(self) -> list[dict[str, object]]:
        """The history as the `earlier` of a next conversion.

        Raises:
            BadCheckpoint: it would be longer than a record can hold.
        """
        steps = len(self.history)
        limits.HISTORY.check(steps + 1, f"the output's {FILE} would remember {steps + 1} conversions")
        keys = ("source", "changes", "lm_head_order")
        # not in every record that early versions wrote
        later = ("options", "target", "shared_by", "quantization", "pruning")
        return [
            {key: origin.data.get(key) for key in keys}
            | {key: value for key in later if (value := origin.data.get(key))}
            for origin in self.history
        ]


def read_provenance(checkpoint: Checkpoint) -> Provenance | None:
    """The provenance of a directory, or None when there is none, it belongs to another or is malformed.

    Raises:
        BadCheckpoint: it remembers more conversions than any record may.
    """
    data = checkpoint.sidecars.get(FILE)
    if data is None or not _is_well_formed(data):
        return None
    steps = 1 + len(cast(Sequence[object], data.get("earlier", [])))
    limits.HISTORY.check(steps, f"{FILE} remembers {steps} conversions")
    genuine = data.get("output") == output_digest(checkpoint.tensors, checkpoint.config, data)
    return Provenance(data) if genuine else None


def recorded_engines(checkpoint: Checkpoint) -> tuple[str, ...] | None:
    """The engines that the record of a drafter names; None where it has none that is its own.

    Raises:
        BadCheckpoint: as `read_provenance`.
    """
    provenance = read_provenance(checkpoint)
    return provenance.engines if provenance else None


def written(directory: Path) -> Mapping[str, FileDigest] | None:
    """What was written with the record of a directory, by file name; None when it is no record of draftconv's."""
    try:
        record = read_sidecar(directory, FILE)
        if not _is_well_formed(record):
            return None
        return _listed_files(record, directory) if "files" in record else _derived_files(directory)
    except DraftconvError:
        return None


OURS = OwnershipMark(FILE, written)
"""The mark of a directory that `convert` or `quantize` wrote."""


def _listed_files(record: Mapping[str, object], directory: Path) -> Mapping[str, FileDigest]:
    """The files that a record lists, and the record itself unless it was edited (which a missing file hides)."""
    listed = {
        # weights by their size: gigabytes would have to be read again, only to be replaced
        name: digest._replace(sha256=None) if is_weights(name) else digest
        for name, digest in recorded_files(record).items()
    }
    try:
        edited = read_provenance(open_checkpoint(directory)) is None
    except DraftconvError:
        edited = False
    return listed if edited else listed | {FILE: FileDigest()}


def recorded_files(record: Mapping[str, object]) -> dict[str, FileDigest]:
    """The files that a record lists, which is all of the output but the record itself.

    Raises:
        BadCheckpoint: the list has another shape.
    """
    files = Config(record, FILE).section("files")
    sections = {name: files.section(name) for name in files.data}
    return {name: FileDigest(part.integer("size"), part.text("sha256")) for name, part in sections.items()}


def _derived_files(directory: Path) -> Mapping[str, FileDigest] | None:
    """What a record without a list belongs to, as early versions wrote it; an edited card is not noticed."""
    checkpoint = open_checkpoint(directory)
    if read_provenance(checkpoint) is None:
        return None
    weights = {ref.file.name for ref in checkpoint.tensors.values()}
    return dict.fromkeys((*weights, *SMALL, FILE), FileDigest())


def output_digest(tensors: Tensors, config: Mapping[str, object], record: Mapping[str, object]) -> str:
    """SHA-256 over the record, config.json and the names, dtypes and shapes of all tensors."""
    rows = sorted([name, tensor.dtype, list(tensor.shape)] for name, tensor in tensors.items())
    rest = {key: value for key, value in record.items() if key != "output"}
    return "sha256:" + hashlib.sha256(_canonical_json([rows, config, rest]).encode()).hexdigest()


def _is_well_formed(data: Mapping[str, object]) -> bool:
    """Whether the parts that are read have their types: a digest can be forged by anybody."""
    earlier = data.get("earlier", [])
    if data.get("format") != FORMAT or not isinstance(earlier, list):
        return False
    engines = data.get("engines", [])
    texts = isinstance(engines, list) and all(isinstance(item, str) for item in engines)
    left_out = data.get("left_out", [])
    texts = texts and isinstance(left_out, list) and all(map(_is_map, left_out))
    return texts and all(_is_step(step) for step in (data, *earlier)) and _is_map(data.get("made", {}))


def _is_step(step: object) -> bool:
    if not isinstance(step, dict) or not isinstance(step.get("changes"), list):
        return False
    source, order = step.get("source"), step.get("lm_head_order")
    if not isinstance(source, dict) or not isinstance(source.get("config"), dict):
        return False
    texts = all(isinstance(source.get(key), (str, type(None))) for key in ("layout", "confidence", "aux_convention"))
    ordered = order is None or (isinstance(order, list) and sorted(map(_row_index, order)) == list(range(len(order))))
    changes = all(_is_map(c) and {"kind", "what", "why"} <= c.keys() for c in step["changes"])
    sections = all(isinstance(step.get(key), (dict, type(None))) for key in ("quantization", "pruning"))
    return texts and ordered and changes and sections and _is_map(source.get("metadata", {}))


def _row_index(value: object) -> int:
    return value if type(value) is int else -1


def _is_map(value: object) -> bool:
    """A JSON object whose values are all text."""
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _canonical_json(document: object) -> str:
    return json.dumps(document, sort_keys=True, ensure_ascii=True)
