"""What will be written, complete before a byte of weights is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from draftconv.checkpoint.dtypes import FLOATS, SIZES, nbytes
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.headers import METADATA, HeaderEntry, encode_header
from draftconv.checkpoint.tensors import TensorRef, element_count
from draftconv.checkpoint.text import is_plain_name, show

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
BLOCK = 4 * 1024 * 1024
"""Source bytes that one thread holds at a time when it computes."""

COPY_BUFFER = 8 * 1024 * 1024
"""Bytes that one thread holds at a time when the kernel cannot copy for it."""

MAX_THREADS = 4
INTERPRETER = 64 * 1024 * 1024
"""Python with numpy loaded."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The bytes of `ref`, untouched."""

    ref: TensorRef


@dataclass(frozen=True, slots=True)
class Cast:
    """The values of a float tensor in another float dtype, rounded once to nearest even."""

    ref: TensorRef
    dtype: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Output row i is row `order[i]` of `ref` (first dimension), cast to `dtype` if given."""

    ref: TensorRef
    order: tuple[int, ...] = field(repr=False)
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes that were computed beforehand: small tensors such as vocabulary maps."""

    data: bytes = field(repr=False)


class Computation(Protocol):
    """One piece of arithmetic that yields several tensors at once, as quantizing a weight does."""

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        """What it reads."""

    @property
    def memory(self) -> int:
        """Bytes that it holds at its peak, about."""

    def run(self) -> Mapping[str, bytes | memoryview]:
        """The bytes of every part, the same at every call."""


@dataclass(frozen=True, slots=True)
class Computed:
    """One part of what a computation yields; the others are other tensors of the plan."""

    of: Computation = field(repr=False)
    part: str


Operation: TypeAlias = Copy | Cast | Rows | Literal | Computed


class Hashes(NamedTuple):
    """SHA-256 in hex of what was written.

    Attributes:
        tensors: of those that a computation yielded, by name. `files`: of the weights files, by name.
    """

    tensors: Mapping[str, str]
    files: Mapping[str, str]


Document: TypeAlias = Mapping[str, object] | str | bytes
"""A small file: JSON, text, or the bytes of one that is taken along."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the output.

    Raises:
        ValueError: the operation does not yield this dtype and shape, or casts an integer.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    operation: Operation

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the file."""
        return nbytes(self.dtype, self.shape)

    def __post_init__(self) -> None:
        size = self.nbytes
        match self.operation:
            case Copy(ref):
                self._expect(ref.dtype == self.dtype and ref.nbytes == size, ref)
            case Cast(ref, dtype):
                self._expect(dtype == self.dtype and element_count(ref) == math.prod(self.shape), ref)
                self._expect({dtype, ref.dtype} <= FLOATS, ref)
            case Rows(ref, order, dtype):
                target = dtype or ref.dtype
                self._expect(target == self.dtype and (len(order), *ref.shape[1:]) == self.shape, ref)
                self._expect(bool(ref.shape) and all(0 <= row < ref.shape[0] for row in order), ref)
                self._expect(target == ref.dtype or {target, ref.dtype} <= FLOATS, ref)
                self._expect(ref.row_bytes * ref.row_count == ref.nbytes, ref)
            case Literal(data):
                if len(data) != size:
                    raise ValueError(f"{show(self.name)}: {len(data)} literal bytes, {size} needed")

    def _expect(self, holds: bool, ref: TensorRef) -> None:
        if not holds:
            raise ValueError(
                f"{show(self.name)} {self.dtype} {show(self.shape)} cannot come from "
                f"{type(self.operation).__name__} of {show(ref.name)} {ref.dtype} {show(ref.shape)}"
            )


@dataclass(frozen=True, slots=True)
class Placed:
    """A planned tensor and the bytes it takes in its file, counted from the file's start."""

    tensor: PlannedTensor
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One weights file: its header and, in file order, its tensors."""

    file_name: str
    header: bytes = field(repr=False)
    tensors: tuple[Placed, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.tensors[-1].stop if self.tensors else len(self.header)


@dataclass(frozen=True)
class Plan:
    """An output directory.

    Attributes:
        tensors: in the order in which they fill the shards.
        files: plain file name → object, written with two spaces of indent, keys in order, or text, or bytes.
        last_files: more of them, made once the hashes of what was written are known.
        metadata: of every weights file; `format: pt` is always added.
        shard_size: most bytes of tensors in one file (a larger tensor gets its own); None: one file.

    Raises:
        ValueError: a tensor or file name twice, a file name that is not plain, no tensors.
    """

    tensors: tuple[PlannedTensor, ...]
    files: Mapping[str, Document] = field(default_factory=lambda: MappingProxyType({}))
    last_files: Callable[[Hashes], Mapping[str, Document]] = lambda _: {}
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    shard_size: int | None = None

    def __post_init__(self) -> None:
        # some transformers 4 readers refuse a file without it
        object.__setattr__(self, "metadata", MappingProxyType({**self.metadata, "format": "pt"}))
        if not self.tensors:
            raise ValueError("a plan without tensors")
        if self.shard_size is not None and self.shard_size <= 0:
            raise ValueError(f"a shard size of {self.shard_size}")
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names) or METADATA in names:
            raise ValueError("a tensor name is planned twice or reserved")
        self._check_names(self.files)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def peak_memory(self) -> int:
        """Estimated resident bytes of the process that executes the plan."""
        literals = sum(len(tensor.operation.data) for tensor in self.tensors if isinstance(tensor.operation, Literal))
        computes = any(isinstance(tensor.operation, Cast | Rows) for tensor in self.tensors)
        # a cast holds its source, a widened copy, the result and masks: at most six times the block
        worker = 6 * BLOCK if computes else COPY_BUFFER
        # computations run one after another: each has threads of its own
        largest = max((op.of.memory for op in map(_operation, self.tensors) if isinstance(op, Computed)), default=0)
        return INTERPRETER + literals + MAX_THREADS * worker + largest

    def source_files(self) -> set[LocalFile]:
        """The local files that tensors come from (each reader of one counts: what it has seen is what was hashed)."""
        refs = [ref for tensor in self.tensors for ref in _sources(tensor.operation)]
        return {ref.file for ref in refs if isinstance(ref.file, LocalFile)}

    def source_directories(self) -> set[Path]:
        """The local directories that tensors come from."""
        return {file.path.parent for file in self.source_files()}

    def shards(self) -> tuple[Shard, ...]:
        """The weights files, in order."""
        return self._shards

    def index(self) -> dict[str, object] | None:
        """`model.safetensors.index.json`, or None for a single file."""
        if len(self._shards) == 1:
            return None
        where = {placed.tensor.name: shard.file_name for shard in self._shards for placed in shard.tensors}
        return {"metadata": {"total_size": self.total_bytes}, "weight_map": dict(sorted(where.items()))}

    def first_files(self) -> dict[str, bytes]:
        """Every file that is neither weights nor one of `last_files`, as it will be written."""
        files = {name: encode(document) for name, document in self.files.items()}
        index = self.index()
        return files if index is None else files | {INDEX: encode(index)}

    def small_files(self, hashes: Hashes) -> dict[str, bytes]:
        """Every file that is not weights, as it will be written.

        Raises:
            ValueError: a file name of `last_files` is taken or not plain.
        """
        last = self.last_files(hashes)
        self._check_names(last, *self.files)
        return self.first_files() | {name: encode(document) for name, document in last.items()}

    def _check_names(self, names: Iterable[str], *others: str) -> None:
        taken = {shard.file_name for shard in self.shards()} | {SINGLE, INDEX, *others}
        for name in names:
            if not is_plain_name(name) or name in taken:
                raise ValueError(f"the file name {show(name)} is taken or not plain")

    @cached_property
    def _shards(self) -> tuple[Shard, ...]:
        groups: list[list[PlannedTensor]] = []
        room = 0
        for tensor in self.tensors:
            if not groups or (self.shard_size is not None and tensor.nbytes > room):
                groups.append([])
                room = self.shard_size or 0
            groups[-1].append(tensor)
            room -= tensor.nbytes
        count = len(groups)
        names = [SINGLE] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        return tuple(_shard(name, group, self.metadata) for name, group in zip(names, groups, strict=True))


def encode(document: Document) -> bytes:
    """A text as it is, or a JSON file as people and transformers write it."""
    if isinstance(document, bytes):
        return document
    text = document if isinstance(document, str) else json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8")


def _sources(operation: Operation) -> tuple[TensorRef, ...]:
    match operation:
        case Literal():
            return ()
        case Computed(computation):
            return computation.sources
        case _:
            return (operation.ref,)


def _operation(tensor: PlannedTensor) -> Operation:
    return tensor.operation


def _shard(file_name: str, tensors: list[PlannedTensor], metadata: Mapping[str, str]) -> Shard:
    """Wide dtypes first, then by name: the order of the safetensors library, aligned without holes."""
    ordered = sorted(tensors, key=lambda tensor: (-SIZES[tensor.dtype], tensor.name))
    entries = []
    offset = 0
    for tensor in ordered:
        entries.append(HeaderEntry(tensor.name, tensor.dtype, tensor.shape, offset, offset + tensor.nbytes))
        offset += tensor.nbytes
    header = encode_header(entries, metadata)
    base = len(header)
    placed = tuple(
        Placed(tensor, base + entry.start, base + entry.stop) for tensor, entry in zip(ordered, entries, strict=True)
    )
    return Shard(file_name, header, placed)
