"""The safetensors header, read strictly and written deterministically.

A file is `u64 little-endian N`, N bytes of JSON, then the tensors' bytes without a hole.
Everything that the safetensors library refuses is refused here, in words.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from draftconv import limits
from draftconv.checkpoint.dtypes import nbytes
from draftconv.checkpoint.files import DataFile
from draftconv.checkpoint.tensors import TensorRef
from draftconv.checkpoint.text import parse_object, show
from draftconv.errors import BadCheckpoint

METADATA = "__metadata__"
ENTRY_KEYS = frozenset({"dtype", "shape", "data_offsets"})
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a safetensors file says of itself; tensors in the order of their bytes."""

    tensors: dict[str, TensorRef]
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """One tensor of a header to be written; offsets count from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(file: DataFile) -> SafetensorsHeader:
    """Read and check the header; no tensor byte is touched.

    Raises:
        BadCheckpoint: anything that the safetensors library would refuse, and repeated keys.
    """
    where = show(file.name)
    refuse_pointer(file)
    if file.size < 8:
        raise _bad(where, f"it has {file.size} bytes and cannot hold a header")
    (length,) = struct.unpack("<Q", file.read(0, 8))
    limits.HEADER.check(length, f"{where}: its header claims {length} bytes")
    if length > file.size - 8:
        raise _bad(where, f"its header claims {length} bytes, the file has {file.size}")
    if length < 2:
        raise _bad(where, f"its header claims {length} bytes, less than an empty object needs")
    raw = file.read(8, length)
    if raw[:1] != b"{":
        raise _bad(where, "its header does not start with '{'")
    entries = parse_object(raw, f"the header of {where}", constants=False)
    metadata = _metadata(entries.pop(METADATA, {}), where)
    begin = 8 + length
    refs = [_reference(name, entry, file, begin) for name, entry in entries.items()]
    refs.sort(key=lambda ref: (ref.offset, ref.nbytes))
    _check_cover(refs, file, begin)
    return SafetensorsHeader({ref.name: ref for ref in refs}, metadata)


def encode_header(entries: Iterable[HeaderEntry], metadata: Mapping[str, str]) -> bytes:
    """The length and the JSON, padded with spaces so that tensor bytes start on a multiple of 8.

    Entries keep their order, metadata keys are sorted: equal input gives equal bytes.
    """
    document: dict[str, object] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    for entry in entries:
        if entry.name in document or entry.name == METADATA:
            raise ValueError(f"the tensor name {show(entry.name)} is taken")
        document[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [entry.start, entry.stop],
        }
    raw = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    limits.HEADER.check(len(raw), f"the header to be written has {len(raw)} bytes")
    return struct.pack("<Q", len(raw)) + raw


def refuse_pointer(file: DataFile) -> None:
    """Say what a git-lfs pointer is instead of calling it a broken header."""
    if file.size >= len(LFS_POINTER) and file.read(0, len(LFS_POINTER)) == LFS_POINTER:
        raise BadCheckpoint(
            f"{show(file.name)} is a git-lfs pointer, not the weights",
            why="the repository was cloned without its large files",
            cure="run `git lfs pull` in that directory",
        )


def _metadata(metadata: object, where: str) -> dict[str, str]:
    if not isinstance(metadata, dict):
        raise _bad(where, f"{METADATA} is not an object")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise _bad(where, f"{METADATA} key {show(key)} is not text")
    return metadata


def _reference(name: str, entry: object, file: DataFile, begin: int) -> TensorRef:
    where = f"{show(file.name)}, tensor {show(name)}"
    limits.TENSOR_NAME.check(len(name), f"{where}: its name has {len(name)} characters")
    if not isinstance(entry, dict) or entry.keys() != ENTRY_KEYS:
        raise _bad(where, "its entry is not an object of exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise _bad(where, "its dtype is not text")
    if not _is_whole_numbers(shape):
        raise _bad(where, f"its shape {show(shape)} is not a list of whole numbers")
    if not _is_whole_numbers(offsets) or len(offsets) != 2:
        raise _bad(where, f"its data_offsets {show(offsets)} are not two whole numbers")
    start, stop = offsets
    if start > stop:
        raise _bad(where, f"its bytes end at {stop}, before they start at {start}")
    if begin + stop > file.size:
        raise _bad(where, f"its bytes {start}…{stop} leave the file, which has {file.size - begin} bytes of data")
    try:
        size = nbytes(dtype, shape)
    except BadCheckpoint as error:
        raise _bad(where, error.what) from error
    if size != stop - start:
        raise _bad(where, f"{dtype} {show(shape)} needs {size} bytes, its range holds {stop - start}")
    return TensorRef(name, dtype, tuple(shape), file, begin + start, size)


def _is_whole_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_cover(refs: list[TensorRef], file: DataFile, begin: int) -> None:
    """Every byte behind the header belongs to exactly one tensor, as safetensors demands."""
    reached = begin
    for ref in refs:
        if ref.offset < reached:
            raise _bad(f"{show(file.name)}, tensor {show(ref.name)}", "its bytes overlap another tensor's")
        if ref.offset > reached:
            raise _bad(
                f"{show(file.name)}, tensor {show(ref.name)}",
                f"{ref.offset - reached} bytes in front of it belong to no tensor",
            )
        reached += ref.nbytes
    if reached != file.size:
        raise _bad(show(file.name), f"{file.size - reached} bytes at its end belong to no tensor")


def _bad(where: str, fault: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{where}: {fault}",
        why="this is not a safetensors file that any engine would load",
        cure="download or export it again",
    )
