"""A checkpoint as it lies on disk or on the Hub: config, sidecars and lazy tensors."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from draftconv import limits
from draftconv.checkpoint.files import exists
from draftconv.checkpoint.local import HeldDirectory, LocalDirectory, refuse_unexported
from draftconv.checkpoint.tensors import TensorRef
from draftconv.checkpoint.text import parse_object, show, show_some
from draftconv.checkpoint.texts import Texts, texts_of
from draftconv.checkpoint.weights import Directory, is_weights, read_weights
from draftconv.errors import BadCheckpoint, UsageError

logger = logging.getLogger(__name__)

CONFIG = "config.json"

QUANT_FILE = "hf_quant_config.json"
"""What ModelOpt writes about its weights beside `config.json`."""

SIDECARS = (QUANT_FILE, "draftconv.json", "generation_config.json")
"""JSON objects that are read when they lie beside `config.json`."""

FORCED_HUB = "hf://"
_HUB_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_REVISION = r"[A-Za-z0-9][\w./-]*"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of the checkpoint's directory.

    Attributes:
        unused: a weights file that was not read, because others come first.
        sha256: of its contents where all of them were read and hashed, else None; never what a server said.
    """

    name: str
    size: int
    unused: bool = False
    sha256: str | None = None

    @property
    def is_read(self) -> bool:
        """Whether a conversion reads it: config, sidecars, index and the weights that count."""
        small = self.name == CONFIG or self.name in SIDECARS or self.name.endswith(".index.json")
        return small or (is_weights(self.name) and not self.unused)


@dataclass(frozen=True)
class Checkpoint:
    """Everything readable in a checkpoint without reading its weights.

    Attributes:
        name: the directory's base name, or `owner/name` on the Hub.
        path: the local directory, None on the Hub.
        config, config_text: `config.json` parsed and verbatim.
        tensors: by name, in file order.
        metadata: `__metadata__` of the safetensors files.
        sidecars: file name → object, for those of `SIDECARS` that exist.
        files: every regular file in the directory, sorted by name.
        revision: the commit on the Hub, None for a local directory.
        texts: its card, licenses and notices.
    """

    name: str
    path: Path | None
    config: Mapping[str, object]
    config_text: str = field(repr=False)
    tensors: Mapping[str, TensorRef] = field(repr=False)
    metadata: Mapping[str, str]
    sidecars: Mapping[str, Mapping[str, object]]
    files: tuple[FileInfo, ...]
    revision: str | None = None
    texts: Texts = field(default_factory=dict, repr=False)


def open_checkpoint(
    spec: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    download: bool = False,
    hashed: bool = False,
) -> Checkpoint:
    """Open a local directory or weights file, or a repository on the Hub.

    Args:
        spec: a path (which wins when it exists), or `[hf://]owner/name[@revision]`.
        revision: branch, tag or commit on the Hub.
        token: for private repositories; without it huggingface_hub's own is used.
        download: fetch a repository's weights into the Hub cache first, to convert them, and compare
            every file with the listing; without it only config and headers cross the network.
        hashed: hash every file that is read of a local directory, too.

    Raises:
        BadCheckpoint: unreadable, not a checkpoint, or not what the Hub lists. NeedsExport: a trainer's runtime state.
        UsageError: a revision for a local path, or two different ones.
    """
    path = local_path(spec)
    if path is not None:
        if revision is not None:
            raise UsageError(
                f"{show(spec)} is a local path; it has no revision",
                cure=f"drop the revision, or write {FORCED_HUB}OWNER/NAME to mean the Hub",
            )
        return open_local(path, hashed=hashed)
    from draftconv.checkpoint.hub import fetch_hub, open_hub

    repository, pinned = hub_name(str(spec))
    if pinned and revision is not None and pinned != revision:
        raise UsageError(f"{show(spec)} names one revision and the option another", cure="give one of them")
    return (fetch_hub if download else open_hub)(repository, pinned or revision, token)


def read_config(spec: str | Path) -> dict[str, object]:
    """The config.json of a local directory or a Hub repository, with or without weights beside it.

    Raises:
        BadCheckpoint: there is none, or it is not a JSON object. UsageError: not a Hub id.
    """
    path = local_path(spec)
    if path is not None:
        return _read_json(LocalDirectory(path), CONFIG)[1]
    from draftconv.checkpoint.hub import hub_directory

    return _read_json(hub_directory(*hub_name(str(spec))), CONFIG)[1]


def read_sidecar(path: Path, name: str) -> dict[str, object]:
    """A JSON object beside the config.json of a local directory, whatever else is there.

    Raises:
        BadCheckpoint: there is none, or it is not a JSON object.
    """
    return _read_json(LocalDirectory(path), name)[1]


def local_path(spec: str | Path) -> Path | None:
    """The path that a spec means, or None when it means the Hub.

    Raises:
        BadCheckpoint: it is neither an existing path nor a Hub id.
    """
    text = str(spec)
    if text.startswith(FORCED_HUB) and not isinstance(spec, Path):
        return None
    path = Path(spec)
    if exists(path):
        return path
    if isinstance(spec, Path) or not re.fullmatch(f"{_HUB_ID}(@{_REVISION})?", text):
        raise BadCheckpoint(
            f"{show(text)} does not exist",
            cure="pass a directory with config.json and weights, or a Hub id OWNER/NAME[@REVISION]",
        )
    return None


def hub_name(text: str) -> tuple[str, str | None]:
    """Split `[hf://]owner/name[@revision]`.

    Raises:
        UsageError: it is not a Hub id.
    """
    repository, _, revision = text.removeprefix(FORCED_HUB).partition("@")
    if not re.fullmatch(_HUB_ID, repository):
        raise UsageError(f"{show(text)} is not a Hub id", cure=f"write {FORCED_HUB}OWNER/NAME[@REVISION]")
    return repository, revision or None


def open_local(path: Path, *, hashed: bool = False) -> Checkpoint:
    """Open a directory, or the directory around a single weights file; `hashed` as in `open_checkpoint`."""
    only = None if path.is_dir() else path.name
    if only is not None and not is_weights(only):
        raise BadCheckpoint(
            f"{show(only)} is neither a directory nor a .safetensors or .bin file",
            cure="pass the directory that holds config.json and the weights",
        )
    directory = (HeldDirectory if hashed else LocalDirectory)(path if only is None else path.parent)
    if only is None:
        refuse_unexported(directory)
    checkpoint = assemble(directory, path=directory.path, only=only)
    if not hashed:
        return checkpoint
    from draftconv.checkpoint.hashing import hash_files, sha256

    names = (info.name for info in checkpoint.files if info.is_read)
    hashes = hash_files(names, directory.open, lambda _, file: sha256(file))
    return replace(checkpoint, files=with_hashes(checkpoint.files, hashes))


def with_hashes(files: tuple[FileInfo, ...], hashes: Mapping[str, str]) -> tuple[FileInfo, ...]:
    """The files with the SHA-256 of those that were hashed."""
    return tuple(replace(info, sha256=hashes.get(info.name)) for info in files)


def assemble(
    directory: Directory,
    *,
    path: Path | None = None,
    revision: str | None = None,
    only: str | None = None,
) -> Checkpoint:
    """Read config, sidecars and headers of a listing into a `Checkpoint`."""
    if not directory.files:
        raise BadCheckpoint(f"{show(directory.name)} is empty", cure="pass the directory that the trainer exported")
    if CONFIG not in directory.files:
        raise BadCheckpoint(
            f"{show(directory.name)} has no {CONFIG}",
            why=f"it holds {show_some(directory.files, 6)}",
            cure="put the drafter's config.json beside the weights",
        )
    text, config = _read_json(directory, CONFIG)
    sidecars = {name: _read_json(directory, name)[1] for name in SIDECARS if name in directory.files}
    weights = read_weights(directory, only)
    files = tuple(
        FileInfo(name, size, is_weights(name) and name not in weights.used)
        for name, size in sorted(directory.files.items())
    )
    logger.info(
        "opened %s: config.json, %d tensors in %s",
        show(path or directory.name), len(weights.tensors), show_some(sorted(weights.used)),
    )  # fmt: skip
    return Checkpoint(
        name=directory.name,
        path=path,
        config=config,
        config_text=text,
        tensors=MappingProxyType(weights.tensors),
        metadata=MappingProxyType(weights.metadata),
        sidecars=MappingProxyType(sidecars),
        files=files,
        revision=revision,
        texts=texts_of(directory),
    )


def _read_json(directory: Directory, name: str) -> tuple[str, dict[str, object]]:
    if name not in directory.files:
        raise BadCheckpoint(f"{show(directory.name)} has no {name}")
    size = directory.files[name]
    limits.CONFIG.check(size, f"{name} has {size} bytes")
    raw = directory.read(name)
    document = parse_object(raw, name)
    return raw.decode("utf-8"), document
