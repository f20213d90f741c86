"""A checkpoint directory on this machine: what may be opened, and what is not a checkpoint yet."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote

from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.text import show
from draftconv.checkpoint.weights import is_weights
from draftconv.errors import BadCheckpoint, NeedsExport


class LocalDirectory:
    """The regular files directly in a directory; see `weights.Directory`.

    Raises:
        BadCheckpoint: it cannot be listed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name or str(path)
        self._root = path.resolve()
        try:
            with os.scandir(path) as entries:
                self.files: Mapping[str, int] = dict(sorted(_sizes(entries)))
        except OSError as error:
            raise BadCheckpoint(f"{show(self.name)} cannot be listed: {error.strerror}") from error

    def open(self, name: str) -> LocalFile:
        """Open a file of the directory; a link may only lead to where checkpoints keep their files."""
        path = self.path / name
        target = Path(os.path.realpath(path))  # resolve() raises on a link that leads to itself
        allowed = {self._root}
        if self._root.parent.name == "snapshots":
            # the Hub cache: models--owner--name/{blobs,snapshots/<revision>}
            allowed.add(self._root.parent.parent / "blobs")
        if target.parent not in allowed:
            raise BadCheckpoint(
                f"{show(name)} in {show(self.name)} is a link that leads out of the directory",
                why="a checkpoint from a stranger could point at any file of yours",
                cure="replace the link by a copy of the file",
            )
        return LocalFile(path)

    def read(self, name: str) -> bytes:
        """The whole of a small file."""
        file = self.open(name)
        return file.read(0, file.size)


class HeldDirectory(LocalDirectory):
    """The same with files that stay open, so that what was hashed is what is read, whatever a name leads to later."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._held: dict[str, LocalFile] = {}

    def open(self, name: str) -> LocalFile:
        """As `LocalDirectory.open`; the same object each time."""
        if name not in self._held:
            self._held[name] = super().open(name)
        return self._held[name]


def refuse_unexported(directory: LocalDirectory) -> None:
    """Say which exporter has to run when the directory is a trainer's runtime state.

    Raises:
        NeedsExport: TorchSpec's distributed checkpoint, SpecForge's training state.
    """
    if any(is_weights(name) for name in directory.files):
        return
    state = _distributed_state(directory.path)
    if state is not None:
        raise NeedsExport(
            f"{show(directory.name)} is a distributed training checkpoint (.metadata and *.distcp), "
            "as TorchSpec writes it",
            why="its shards are pickled training state, with the optimizer in it",
            cure="export it with TorchSpec first:  python tools/convert_to_hf.py "
            f"--input-dir {quote(str(state))} --output-dir EXPORTED",
        )
    if "training_state.pt" in directory.files:
        raise NeedsExport(
            f"{show(directory.name)} is a training state (training_state.pt), as SpecForge writes it",
            why="it holds the optimizer too, and no embeddings",
            cure="export it with SpecForge first:  python -m specforge.export.to_hf "
            f"--checkpoint {quote(str(directory.path))} --draft-config CONFIG.json --output-dir EXPORTED "
            "--embedding-source TARGET",
        )


def _distributed_state(path: Path) -> Path | None:
    """The iteration to export: the directory itself, or the newest `iter_NNNNNNN` in it."""
    if _has_shards(path) or _has_shards(path / "model"):
        return path
    iterations = [item for item in path.glob("iter_*") if _has_shards(item) or _has_shards(item / "model")]
    return max(iterations, default=None, key=lambda item: (len(item.name), item.name))


def _has_shards(path: Path) -> bool:
    return (path / ".metadata").is_file() or any(path.glob("*.distcp"))


def _sizes(entries: Iterable[os.DirEntry[str]]) -> list[tuple[str, int]]:
    sizes = []
    for entry in entries:
        try:
            status = entry.stat()
        except OSError:
            # a dangling link: listed, so that using it fails by name
            status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            sizes.append((entry.name, status.st_size))
    return sizes
