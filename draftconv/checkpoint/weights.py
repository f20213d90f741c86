"""Which files of a directory are the weights, and what tensors they hold together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from draftconv import limits
from draftconv.checkpoint.files import DataFile
from draftconv.checkpoint.headers import read_header
from draftconv.checkpoint.tensors import TensorRef
from draftconv.checkpoint.text import is_plain_name, parse_object, show, show_some
from draftconv.errors import BadCheckpoint

SAFETENSORS = ".safetensors"
TORCH = ".bin"

# (suffix, index, the one file that holds it all), best first
FAMILIES = (
    (SAFETENSORS, "model.safetensors.index.json", "model.safetensors"),
    (TORCH, "pytorch_model.bin.index.json", "pytorch_model.bin"),
)

NOT_WEIGHTS = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})
"""What transformers and accelerate save beside the weights under the same suffix."""

_NUMBERED = r"(.*)-(\d{5})-of-(\d{5})\.(?:safetensors|bin)"


class Directory(Protocol):
    """A flat listing whose files can be opened: a local directory or a repository."""

    @property
    def name(self) -> str:
        """How a person calls it."""

    @property
    def files(self) -> Mapping[str, int]:
        """Plain file name → bytes."""

    def open(self, name: str) -> DataFile:
        """Open one of `files`; BadCheckpoint when it leads elsewhere."""

    def read(self, name: str) -> bytes:
        """The whole of a small one; BadCheckpoint also when it is not what a listing says."""


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The tensors of all weight files, in file order, and where they came from."""

    tensors: dict[str, TensorRef]
    metadata: dict[str, str]
    used: frozenset[str]


def is_weights(name: str) -> bool:
    """Whether a file name is that of a weights file."""
    return name.endswith((SAFETENSORS, TORCH)) and name not in NOT_WEIGHTS


def read_weights(directory: Directory, only: str | None = None) -> WeightFiles:
    """Read the headers of the directory's weights, or of the one file `only`.

    Raises:
        BadCheckpoint: no weights, an index that does not match, missing shards, a tensor twice.
    """
    if only is not None:
        return _merge(directory, (only,), None, None)
    for suffix, index, single in FAMILIES:
        names = sorted(name for name in directory.files if name.endswith(suffix) and is_weights(name))
        if index in directory.files:
            return _read_indexed(directory, index, single)
        if single in names:
            return _merge(directory, (single,), None, None)
        if names:
            _refuse_missing_shards(directory, names)
            return _merge(directory, tuple(names), None, None)
    raise BadCheckpoint(
        f"{show(directory.name)} holds no weights: neither *.safetensors nor *.bin",
        why=f"it holds {show_some(sorted(directory.files), 6) or 'no files'}",
        cure="pass the directory (or repository) that the trainer exported",
    )


def read_file(file: DataFile) -> tuple[dict[str, TensorRef], dict[str, str]]:
    """Tensors and metadata of one weights file, by its suffix."""
    if file.name.endswith(SAFETENSORS):
        header = read_header(file)
        return header.tensors, header.metadata
    from draftconv.checkpoint.torchbin import read_torch

    return read_torch(file), {}


def _read_indexed(directory: Directory, index: str, single: str) -> WeightFiles:
    size = directory.files[index]
    limits.INDEX.check(size, f"{index} has {size} bytes")
    weight_map = parse_object(directory.read(index), index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadCheckpoint(f"{index} has no weight_map", cure="export the checkpoint again")
    where: dict[str, str] = {}
    suffix = single[single.index(".") :]
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not is_plain_name(name) or not name.endswith(suffix):
            raise BadCheckpoint(
                f"{index} puts tensor {show(tensor)} into {show(name)}, which is not the name of a {suffix} file",
                why="an index may only name files beside it",
                cure="correct the index, or export the checkpoint again",
            )
        where[tensor] = name
    shards = tuple(sorted(set(where.values())))
    missing = [name for name in shards if name not in directory.files]
    if missing:
        raise BadCheckpoint(
            f"{show(directory.name)} lacks {show_some(missing)}, which {index} names",
            why="the weights are incomplete",
            cure="download the missing files",
        )
    if single in directory.files and single not in shards:
        raise BadCheckpoint(
            f"{show(directory.name)} holds both {single} and {index}, which does not name it",
            why="some readers load the single file, others the indexed ones: they may differ",
            cure="remove the one that is not meant",
        )
    return _merge(directory, shards, where, index)


def _merge(
    directory: Directory, names: tuple[str, ...], where: Mapping[str, str] | None, index: str | None
) -> WeightFiles:
    tensors: dict[str, TensorRef] = {}
    metadata: dict[str, str] = {}
    for name in names:
        refs, described = read_file(directory.open(name))
        for tensor, ref in refs.items():
            if tensor in tensors:
                raise BadCheckpoint(
                    f"tensor {show(tensor)} is in both {show(tensors[tensor].file.name)} and {show(name)}",
                    why="readers disagree on which of the two counts",
                    cure="remove the file that does not belong to the checkpoint",
                )
            if where is not None and where.get(tensor) != name:
                raise BadCheckpoint(
                    f"tensor {show(tensor)} is in {show(name)}, but {index} "
                    + (f"puts it into {show(where[tensor])}" if tensor in where else "does not name it"),
                    why="readers that follow the index would not find it",
                    cure="correct the index, or export the checkpoint again",
                )
            tensors[tensor] = ref
        limits.TENSORS.check(len(tensors), f"{show(directory.name)} has {len(tensors)} tensors, up to {show(name)}")
        for key, value in described.items():
            if metadata.setdefault(key, value) != value:
                raise BadCheckpoint(
                    f"{show(name)} and the shards before it differ in metadata {show(key)}",
                    why="they do not come from one export",
                    cure="export the checkpoint again",
                )
    lost = [tensor for tensor in where or () if tensor not in tensors]
    if lost and where is not None:
        raise BadCheckpoint(
            f"{index} puts {show_some(lost)} into {show(where[lost[0]])}, which does not hold it",
            why="the weights are incomplete",
            cure="export the checkpoint again",
        )
    if not tensors:
        raise BadCheckpoint(f"{show(directory.name)} holds no tensors", cure="export the checkpoint again")
    return WeightFiles(tensors, metadata, frozenset(names))


def _refuse_missing_shards(directory: Directory, names: list[str]) -> None:
    """Without an index the names themselves say how many shards there are."""
    for name in names:
        numbered = re.fullmatch(_NUMBERED, name)
        if numbered is None:
            continue
        stem, _, count = numbered.groups()
        suffix = name[name.rindex(".") :]
        # one missing name is enough; the count is five digits at most
        for number in range(1, int(count) + 1):
            shard = f"{stem}-{number:05d}-of-{count}{suffix}"
            if shard not in directory.files:
                raise BadCheckpoint(
                    f"{show(directory.name)} lacks {show(shard)}",
                    why="the weights are incomplete",
                    cure="download the missing files",
                )
