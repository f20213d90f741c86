#!/usr/bin/env python3
"""Write a full-size checkpoint with seeded random values from a header spec.

    python scripts/make_synthetic.py scripts/specs/kimi-k2.5-eagle3.json OUT [--sparse] [--seed N]

The spec is a JSON file:

    {
      "about":    "what this stands for, and what of it is known",
      "config":   {...},                                  becomes config.json
      "metadata": {"format": "pt"},                       becomes the safetensors metadata; optional
      "tensors":  {"fc.weight": {"dtype": "BF16", "shape": [7168, 21504]}, ...},
      "files":    {"model-00001-of-00002.safetensors": ["fc.weight", ...], ...}   optional shard map
    }

A bare header, {name: {"dtype", "shape"}, ...}, will do too; --config then gives the config.json.

Every value depends on the seed, the tensor's name and its place in the tensor, and on nothing else.
Weights are normal with standard deviation 0.02, norms lie near 1, scales are positive, packed integers
are random words, and d2t and t2d describe one and the same ascending draft vocabulary.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

ITEM_BYTES = {"BOOL": 1, "I8": 1, "U8": 1, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8}
VOCABULARY_MAPS = {"d2t": "I64", "t2d": "BOOL"}
BLOCK_ITEMS = 1 << 20
PHILOX_STEP_BYTES = 32  # one count of Philox's counter yields four 64-bit words

Spec = dict[str, Any]
Bytes = npt.NDArray[np.uint8]


class SpecError(Exception):
    """The spec does not describe a checkpoint that can be written."""


# What a float tensor holds, as a function of a standard normal value; the first matching name decides.
DISTRIBUTIONS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    (r"_scale(_\d+)?$|\.scales$", lambda z: 0.003 * np.exp(0.3 * z)),
    (r"norm(\.\d+)?\.weight$", lambda z: 1.0 + 0.05 * z),
    (r"", lambda z: 0.02 * z),
)


def role(name: str) -> str:
    """The name without its prefixes: `d2t` and `t2d` are known by it."""
    return name.rpartition(".")[2]


@cache
def quantiles(distribution: int, dtype: str) -> npt.NDArray[Any]:
    """The 65536 equally likely values that 16 random bits choose from; BF16 as its bit patterns."""
    normal = NormalDist()
    z = np.array([normal.inv_cdf((i + 0.5) / 65536) for i in range(65536)])
    values: npt.NDArray[np.float32] = DISTRIBUTIONS[distribution][1](z).astype(np.float32)
    if dtype == "BF16":  # the upper half of float32, rounded to nearest even
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype({"F16": np.float16, "F32": np.float32}[dtype])


@dataclass(frozen=True)
class Tensor:
    """One tensor of the spec and the place of its data in its file, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def items(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        return self.begin + self.items * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class ShardFile:
    """One safetensors file: its name, its complete header and its tensors."""

    name: str
    header: bytes
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        return len(self.header) + (self.tensors[-1].end if self.tensors else 0)


def random_bytes(seed: int, name: str, offset: int, count: int) -> Bytes:
    """Bytes [offset, offset + count) of the random stream that belongs to (seed, name)."""
    assert offset % PHILOX_STEP_BYTES == 0, "blocks start on a step of the generator"
    key = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    generator = np.random.Philox(key=int.from_bytes(key, "little"), counter=offset // PHILOX_STEP_BYTES)
    return generator.random_raw(-(-count // 8)).view(np.uint8)[:count]


def vocabulary_map(spec: Spec, kind: str, seed: int) -> Bytes:
    """The whole content of d2t (offsets) or t2d (membership) for one random ascending draft vocabulary."""
    sizes = {role(name): row["shape"][0] for name, row in spec["tensors"].items() if role(name) in VOCABULARY_MAPS}
    draft_size, size = sizes.get("d2t"), sizes.get("t2d", spec["config"].get("vocab_size"))
    if draft_size is None or size is None or draft_size > size:
        raise SpecError(f"d2t holds {draft_size} of {size} ids (the size of t2d or config.vocab_size)")
    order = random_bytes(seed, "vocabulary", 0, size * 8).view(np.uint64).argsort(kind="stable")
    ids = np.sort(order[:draft_size])
    if kind == "d2t":
        return (ids - np.arange(draft_size)).view(np.uint8)
    member = np.zeros(size, np.uint8)
    member[ids] = 1
    return member


def block_content(spec: Spec, tensor: Tensor, seed: int, first: int, count: int) -> Bytes:
    """The bytes of items [first, first + count) of a tensor."""
    item = ITEM_BYTES[tensor.dtype]
    if role(tensor.name) in VOCABULARY_MAPS:
        return vocabulary_map(spec, role(tensor.name), seed)[first * item : (first + count) * item]
    if tensor.dtype in ("I8", "U8", "I32"):
        return random_bytes(seed, tensor.name, first * item, count * item)
    distribution = next(i for i, (name, _) in enumerate(DISTRIBUTIONS) if re.search(name, tensor.name))
    table = quantiles(distribution, tensor.dtype)
    choice = random_bytes(seed, tensor.name, first * 2, count * 2).view(np.uint16)
    return np.take(table, choice, mode="clip").view(np.uint8)


def plan_files(spec: Spec) -> list[ShardFile]:
    """Lay out every tensor of the spec: largest items first, then by name, as safetensors does."""
    tensors: dict[str, dict[str, Any]] = spec["tensors"]
    shards: dict[str, list[str]] = spec.get("files") or {"model.safetensors": list(tensors)}
    if sorted(name for names in shards.values() for name in names) != sorted(tensors):
        raise SpecError("files must place every tensor exactly once")
    for name, row in tensors.items():
        if row["dtype"] not in ITEM_BYTES:
            raise SpecError(f"{name} has dtype {row['dtype']}; known: {', '.join(ITEM_BYTES)}")
        if (row["dtype"] in VOCABULARY_MAPS.values()) != (VOCABULARY_MAPS.get(role(name)) == row["dtype"]):
            raise SpecError(f"{name} has dtype {row['dtype']}; only d2t is I64 and only t2d is BOOL")
        if role(name) in VOCABULARY_MAPS and len(row["shape"]) != 1:
            raise SpecError(f"{name} has shape {row['shape']}; a vocabulary map has one dimension")

    files = []
    for file_name, names in shards.items():
        begin = 0
        placed = []
        for name in sorted(names, key=lambda name: (-ITEM_BYTES[tensors[name]["dtype"]], name)):
            tensor = Tensor(name, tensors[name]["dtype"], tuple(tensors[name]["shape"]), begin)
            placed.append(tensor)
            begin = tensor.end
        header: dict[str, Any] = {"__metadata__": spec["metadata"]} if spec.get("metadata") else {}
        for t in placed:
            header[t.name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": (t.begin, t.end)}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        files.append(ShardFile(file_name, len(text).to_bytes(8, "little") + text, tuple(placed)))
    return files


def write_file(path: Path, file: ShardFile, spec: Spec, *, seed: int, sparse: bool, threads: int) -> None:
    """Write one safetensors file; `sparse` leaves a hole for all data but the vocabulary maps."""
    with path.open("wb") as handle:
        handle.write(file.header)
        handle.truncate(file.size)
    filled = [tensor for tensor in file.tensors if not sparse or role(tensor.name) in VOCABULARY_MAPS]
    descriptor = os.open(path, os.O_WRONLY)

    def write_block(block: tuple[Tensor, int]) -> None:
        tensor, first = block
        data = block_content(spec, tensor, seed, first, min(BLOCK_ITEMS, tensor.items - first))
        position = len(file.header) + tensor.begin + first * ITEM_BYTES[tensor.dtype]
        rest = memoryview(data.data)
        while rest:
            written = os.pwrite(descriptor, rest, position)
            rest, position = rest[written:], position + written

    def blocks() -> Iterator[tuple[Tensor, int]]:
        for tensor in filled:
            for first in range(0, tensor.items, BLOCK_ITEMS):
                yield tensor, first

    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(write_block, blocks()):
                pass
    finally:
        os.close(descriptor)


def write_checkpoint(spec: Spec, out: Path, *, seed: int = 0, sparse: bool = False, threads: int | None = None) -> int:
    """Write the checkpoint directory `out`, which must not exist yet; returns the bytes of tensor data."""
    if out.exists():
        raise SpecError(f"{out} exists already")
    files = plan_files(spec)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in files:
        path = partial / file.name
        write_file(path, file, spec, seed=seed, sparse=sparse, threads=threads or os.cpu_count() or 1)
    data_bytes = sum(file.size - len(file.header) for file in files)
    if spec.get("files"):
        weight_map = {tensor.name: file.name for file in files for tensor in file.tensors}
        index = {"metadata": {"total_size": data_bytes}, "weight_map": weight_map}
        write_json(partial / "model.safetensors.index.json", index)
    write_json(partial / "config.json", spec["config"])
    partial.rename(out)
    return data_bytes


def read_spec(path: Path, config: Path | None = None) -> Spec:
    """Read a spec, or a bare header as one, with another config.json if one is given."""
    spec: Spec = json.loads(path.read_text())
    bare = all(isinstance(row, dict) and row.keys() >= {"dtype", "shape"} for row in spec.values())
    if not bare and "tensors" not in spec:
        raise SpecError("neither a spec with tensors nor a header {name: {dtype, shape}}")
    whole: Spec = {"config": {}, "tensors": spec} if bare else {"config": {}, **spec}
    return whole | {"config": json.loads(config.read_text())} if config else whole


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint with seeded random values.")
    parser.add_argument("spec", type=Path, help="header spec, e.g. scripts/specs/kimi-k2.5-eagle3.json")
    parser.add_argument("out", type=Path, help="directory to make")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sparse",
        action="store_true",
        help="real header and vocabulary maps, a hole of zeros for the weights",
    )
    parser.add_argument("--config", type=Path, help="config.json to use instead of the spec's own")
    parser.add_argument("--threads", type=int, help="default: one per core; changes no byte")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        data_bytes = write_checkpoint(
            read_spec(options.spec, options.config),
            options.out,
            seed=options.seed,
            sparse=options.sparse,
            threads=options.threads,
        )
    except SpecError as error:
        sys.exit(f"Error: {options.spec}: {error}")
    print(f"{options.out}: {data_bytes:,} bytes of tensors in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
