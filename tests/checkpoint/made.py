"""Small checkpoints and files for the tests of this room."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftconv.checkpoint import TensorRef
from draftconv.checkpoint.files import check_range
from draftconv.checkpoint.staging import FileDigest, OwnershipMark

ANYTHING = OwnershipMark("draftconv.json", lambda path: {item.name: FileDigest() for item in path.iterdir()})
"""Whatever lies beside a draftconv.json is taken for draftconv's."""


class MemoryFile:
    """A `DataFile` of bytes that fails the test when a read would leave it."""

    def __init__(self, data: bytes, name: str = "x.safetensors") -> None:
        self.data = data
        self.name = name
        self.size = len(data)
        self.largest = 0

    def read(self, offset: int, length: int) -> bytes:
        check_range(self, offset, length)
        self.largest = max(self.largest, length)
        return self.data[offset : offset + length]

    def readinto(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, buffer.nbytes)


@contextmanager
def synced() -> Iterator[set[int]]:
    """Inodes of the files and directories that are made durable while this is open; renaming keeps them."""
    found: set[int] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: found.add(os.fstat(descriptor).st_ino))
        yield found


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """One tensor of each kind that drafters hold."""
    random = torch.Generator().manual_seed(seed)
    return {
        "fc.weight": torch.randn(24, 72, generator=random).bfloat16(),
        "norm.weight": torch.randn(24, generator=random),
        "lm_head.weight": torch.randn(50, 24, generator=random).half(),
        "d2t": torch.arange(50) * 3,
        "t2d": torch.rand(200, generator=random) > 0.5,
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 24),
        "codes": torch.randint(-128, 127, (8, 3), dtype=torch.int8, generator=random),
    }


def directory(path: Path, *, config: object = None, suffix: str = "safetensors") -> Path:
    """A checkpoint directory with `tensors()` in one file."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"hidden_size": 24} if config is None else config))
    if suffix == "safetensors":
        save_file(tensors(), path / "model.safetensors", metadata={"format": "pt"})
    else:
        torch.save(tensors(), path / "pytorch_model.bin")
    return path


def raw_file(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header: a JSON value, text, or bytes."""
    if isinstance(header, bytes):
        raw = header
    else:
        raw = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The tensor's memory, row-major."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@dataclass
class Halves:
    """A computation: the even and the odd bytes of a tensor, `low` and `high`.

    Attributes:
        short: whether `low` lacks its last byte. `broken`: whether both are nothing but NaN.
        runs: how often it ran.
    """

    ref: TensorRef
    short: bool = False
    broken: bool = False
    memory: int = 1 << 30
    runs: int = 0

    @property
    def sources(self) -> tuple[TensorRef, ...]:
        return (self.ref,)

    def run(self) -> dict[str, bytes | memoryview]:
        self.runs += 1
        data = b"\xff" * self.ref.nbytes if self.broken else self.ref.read()
        low = data[::2]
        return {"low": low[:-1] if self.short else low, "high": memoryview(data[1::2])}
