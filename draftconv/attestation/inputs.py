"""What an output was made from or is, file by file, with the SHA-256 of what was read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from draftconv.attestation.statement import ResourceDescriptor
from draftconv.checkpoint import Checkpoint
from draftconv.checkpoint.checkpoint import CONFIG
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.hashing import sha256
from draftconv.drafter.targets import Target


def files_of(checkpoint: Checkpoint, *, everything: bool = False) -> Iterator[ResourceDescriptor]:
    """The files of a checkpoint that are read, under `NAME/FILE`; of a repository with its revision.

    Args:
        everything: whatever else lies in the directory as well.
    """
    where = _uri(checkpoint)
    files = {ref.file.name: ref.file for ref in checkpoint.tensors.values()}
    for info in checkpoint.files:
        if not (everything or info.is_read):
            continue
        digest = info.sha256
        if digest is None and checkpoint.path is not None:
            digest = sha256(LocalFile(checkpoint.path / info.name))
        elif digest is None and info.name in files:
            digest = sha256(files[info.name])
        elif digest is None and info.name == CONFIG:
            digest = hashlib.sha256(checkpoint.config_text.encode("utf-8")).hexdigest()
        uri = f"{where}#{info.name}" if where else None
        if digest is not None or uri is not None:
            yield ResourceDescriptor(f"{checkpoint.name}/{info.name}", digest, uri)


def subjects(directory: Path) -> Iterator[ResourceDescriptor]:
    """Every file of an output directory, by its name in it."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield ResourceDescriptor(path.relative_to(directory).as_posix(), sha256(LocalFile(path)))


def target_file(target: Target, *, tables: Iterable[Path] = ()) -> Iterator[ResourceDescriptor]:
    """The config of a target, and the files of tables that were taken from it or compared with it."""
    if target.path is None:
        where = f"pkg:huggingface/{target.repo}" if target.repo else "urn:draftconv:target"
        yield ResourceDescriptor(f"target {target.name}", uri=where, annotations={"layers": target.layers})
        return
    for path in (target.path / CONFIG, *sorted({*tables})):
        yield ResourceDescriptor(f"target {target.name}/{path.name}", sha256(LocalFile(path)))


def trace_file(directory: Path) -> ResourceDescriptor:
    """The index of a trace, which holds the digest of every other file of it."""
    return ResourceDescriptor(f"trace {directory.name}/trace.json", sha256(LocalFile(directory / "trace.json")))


def text_files(places: Iterable[str]) -> Iterator[ResourceDescriptor]:
    """The files that tokens were counted in; a data set of the Hub by its name."""
    for place in places:
        if place.startswith("hf://"):
            yield ResourceDescriptor(f"text {place}", uri=place)
        else:
            yield ResourceDescriptor(f"text {Path(place).name}", sha256(LocalFile(Path(place))))


def _uri(checkpoint: Checkpoint) -> str | None:
    """A repository and its commit as a package URL; None for a local directory, of which no path is told."""
    if checkpoint.path is not None:
        return None
    return f"pkg:huggingface/{checkpoint.name}" + (f"@{checkpoint.revision}" if checkpoint.revision else "")
