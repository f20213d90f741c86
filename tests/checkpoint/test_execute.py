import errno
import hashlib
import itertools
import json
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from draftconv.checkpoint import (
    SIZES,
    Cast,
    Computed,
    Copy,
    Hashes,
    Literal,
    Operation,
    Plan,
    PlannedTensor,
    Rows,
    TensorRef,
    open_checkpoint,
)
from draftconv.checkpoint import execute as execute_module
from draftconv.checkpoint import hashing as hashing_module
from draftconv.checkpoint.execute import _Compute, _Move, _Yield, execute, segments
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.plan import Shard
from draftconv.errors import BadCheckpoint, Refused, UsageError, WriteError
from tests.checkpoint.made import ANYTHING, Halves, MemoryFile, directory, synced, tensor_bytes, tensors


def copies(refs: dict[str, TensorRef]) -> tuple[PlannedTensor, ...]:
    return tuple(PlannedTensor(ref.name, ref.dtype, ref.shape, Copy(ref)) for ref in refs.values())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return directory(tmp_path / "source")


@pytest.fixture
def refs(source: Path) -> dict[str, TensorRef]:
    return dict(open_checkpoint(source).tensors)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_every_file_is_made_durable(tmp_path: Path, refs: dict[str, TensorRef]) -> None:
    with synced() as found:
        execute(Plan(copies(refs), files={"config.json": {}}), tmp_path / "out")
    written = {path.name: path.stat().st_ino for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors"} <= written.keys()
    assert set(written.values()) <= found


def test_a_plain_copy_is_the_same_file(source: Path, refs: dict[str, TensorRef], tmp_path: Path) -> None:
    execute(Plan(copies(refs), {"config.json": {"hidden_size": 24}}), tmp_path / "out")
    assert contents(tmp_path / "out") == {
        "model.safetensors": (source / "model.safetensors").read_bytes(),
        "config.json": b'{\n  "hidden_size": 24\n}\n',
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def every_operation(refs: dict[str, TensorRef]) -> tuple[tuple[PlannedTensor, ...], dict[str, torch.Tensor]]:
    want = tensors()
    order = tuple(int(row) for row in np.random.default_rng(0).permutation(50))
    planned = (
        PlannedTensor("copy", "BF16", (24, 72), Copy(refs["fc.weight"])),
        PlannedTensor("reshaped", "BF16", (72, 24), Copy(refs["fc.weight"])),
        PlannedTensor("cast", "F32", (24, 72), Cast(refs["fc.weight"], "F32")),
        PlannedTensor("rows", "F16", (50, 24), Rows(refs["lm_head.weight"], order)),
        PlannedTensor("rows.cast", "BF16", (50, 24), Rows(refs["lm_head.weight"], order, "BF16")),
        PlannedTensor("few", "I64", (3,), Rows(refs["d2t"], (2, 0, 2))),
        PlannedTensor("none", "I64", (0,), Rows(refs["d2t"], ())),
        PlannedTensor("empty", "F32", (0, 24), Copy(refs["empty"])),
        PlannedTensor("scalar", "F64", (), Cast(refs["scalar"], "F64")),
        PlannedTensor("bytes", "I8", (8, 3), Copy(refs["codes"])),
        PlannedTensor("map", "BOOL", (3,), Literal(b"\1\0\1")),
    )
    wanted = {
        "copy": want["fc.weight"],
        "reshaped": want["fc.weight"].reshape(72, 24),
        "cast": want["fc.weight"].float(),
        "rows": want["lm_head.weight"][list(order)],
        "rows.cast": want["lm_head.weight"][list(order)].bfloat16(),
        "few": want["d2t"][[2, 0, 2]],
        "none": torch.zeros(0, dtype=torch.int64),
        "empty": want["empty"],
        "scalar": want["scalar"].double(),
        "bytes": want["codes"],
        "map": torch.tensor([True, False, True]),
    }
    return planned, wanted


def check_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert tensor_bytes(found[name]) == tensor_bytes(tensor), name


def test_every_operation_as_torch_does_it(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    planned, wanted = every_operation(refs)
    execute(Plan(planned, metadata={"made": "here"}), tmp_path / "out")
    check_same(load_file(tmp_path / "out/model.safetensors"), wanted)
    with safe_open(tmp_path / "out/model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt", "made": "here"}


def test_shards_reopen_through_their_index(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    planned, wanted = every_operation(refs)
    execute(Plan(planned, {"config.json": {}}, shard_size=4000), tmp_path / "out")
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 2
    found: dict[str, torch.Tensor] = {}
    for name in shards:
        found |= load_file(tmp_path / "out" / name)
    check_same(found, wanted)
    again = open_checkpoint(tmp_path / "out")
    assert {name: ref.read() for name, ref in again.tensors.items()} == {
        name: tensor_bytes(tensor) for name, tensor in wanted.items()
    }


@pytest.fixture
def without_kernel_copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    yield


@pytest.mark.usefixtures("without_kernel_copy")
def test_copies_without_the_kernel(source: Path, refs: dict[str, TensorRef], tmp_path: Path) -> None:
    execute(Plan(copies(refs)), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_sources_need_not_be_local(tmp_path: Path) -> None:
    data = b"".join(bytes([i % 256]) * 7 for i in range(600))
    file = MemoryFile(data)
    ref = TensorRef("x", "U8", (600, 7), file, 0, 4200)
    execute(Plan((PlannedTensor("x", "U8", (600, 7), Copy(ref)),)), tmp_path / "out")
    assert load_file(tmp_path / "out/model.safetensors")["x"].numpy().tobytes() == data


@pytest.mark.parametrize(("threads", "block", "chunk"), [(1, 64, 100), (3, 1000, 1), (8, 7, 4096)])
def test_bytes_do_not_depend_on_threads_or_blocks(
    refs: dict[str, TensorRef],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    block: int,
    chunk: int,
) -> None:
    planned, _ = every_operation(refs)
    plan = Plan(planned, {"config.json": {}}, shard_size=4000)
    execute(plan, tmp_path / "usual")
    monkeypatch.setattr(execute_module, "BLOCK", max(block, 8))
    monkeypatch.setattr(execute_module, "COPY_CHUNK", max(chunk, 64))
    monkeypatch.setattr(execute_module, "COPY_BUFFER", 33)
    execute(plan, tmp_path / "odd", threads=threads)
    assert contents(tmp_path / "odd") == contents(tmp_path / "usual")


def test_progress_ends_at_the_total(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    planned, _ = every_operation(refs)
    plan = Plan(planned, shard_size=4000)
    seen: list[int] = []
    execute(plan, tmp_path / "out", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == plan.total_bytes


@settings(max_examples=100)
@given(st.data())
def test_segments_are_the_permuted_bytes(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    raw = bytes(range(rows * width))
    order = tuple(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=12)))
    ref = TensorRef("x", "U8", (rows, width), MemoryFile(b"??" + raw), 2, rows * width)
    permuted = b"".join(raw[row * width : (row + 1) * width] for row in order)
    start = data.draw(st.integers(0, len(permuted)))
    stop = data.draw(st.integers(start, len(permuted)))
    found = list(segments(Rows(ref, order), start, stop))
    assert b"".join(ref.file.read(offset, length) for offset, length in found) == permuted[start:stop]
    assert all(a + length != b for (a, length), (b, _) in itertools.pairwise(found))


def test_overflow_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    save_file({"big": torch.full((4, 4), 1e6, dtype=torch.bfloat16)}, tmp_path / "source/model.safetensors")
    (tmp_path / "source/config.json").write_text("{}")
    ref = open_checkpoint(tmp_path / "source").tensors["big"]
    with pytest.raises(Refused, match=r"tensor big holds 999424\.0, which F16"):
        execute(Plan((PlannedTensor("big", "F16", (4, 4), Cast(ref, "F16")),)), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("operation", [Copy, lambda ref: Cast(ref, "F32")])
def test_a_source_that_shrinks_leaves_nothing(
    source: Path, refs: dict[str, TensorRef], tmp_path: Path, operation: type[Copy]
) -> None:
    os.truncate(source / "model.safetensors", 1000)
    made = operation(refs["fc.weight"])
    dtype = "BF16" if isinstance(made, Copy) else "F32"
    with pytest.raises(BadCheckpoint, match="became shorter"):
        execute(Plan((PlannedTensor("fc.weight", dtype, (24, 72), made),)), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_what_reads_back_differently_is_not_published(
    refs: dict[str, TensorRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = execute_module._write_small

    def damaged(path: Path, data: bytes) -> None:
        real(path, data[:-1] + b"?")

    monkeypatch.setattr(execute_module, "_write_small", damaged)
    with pytest.raises(WriteError, match=r"config\.json was written but reads back differently"):
        execute(Plan(copies(refs), {"config.json": {}}), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_overwrite_replaces_what_draftconv_wrote(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    out = tmp_path / "out"
    execute(Plan(copies(refs), {"draftconv.json": {}, "config.json": {"run": 1}}), out)
    again = Plan(copies(refs), {"draftconv.json": {}, "config.json": {"run": 2}}, shard_size=4000)
    with pytest.raises(WriteError, match="out exists already"):
        execute(again, out)
    execute(again, out, overwrite=True, mark=ANYTHING)
    assert json.loads((out / "config.json").read_text()) == {"run": 2}
    assert not (out / "model.safetensors").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_the_source_is_never_the_output(source: Path, refs: dict[str, TensorRef]) -> None:
    before = contents(source)
    for out, relation in ((source, "is"), (source / "out", "lies inside"), (source.parent, "contains")):
        with pytest.raises(UsageError, match=f"{relation} the source"):
            execute(Plan(copies(refs)), out, overwrite=True)
    assert contents(source) == before


def test_files_have_ordinary_permissions(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").touch()
    execute(Plan(copies(refs), {"config.json": {}}), tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode
    for path in (tmp_path / "out").iterdir():
        assert path.stat().st_mode == (tmp_path / "file").stat().st_mode


# ── computations ───────────────────────────────────────────────────────────────────


def halves(name: str, ref: TensorRef, **how: bool) -> tuple[PlannedTensor, ...]:
    """The two parts of a computation as tensors of the output."""
    computation, shape = Halves(ref, **how), (ref.nbytes // 2,)
    return tuple(PlannedTensor(f"{name}.{part}", "U8", shape, Computed(computation, part)) for part in ("low", "high"))


def test_parts_land_at_their_places_among_other_tensors(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    fc, head = halves("fc", refs["fc.weight"]), halves("head", refs["lm_head.weight"])
    planned = (fc[1], head[0], *copies(refs), fc[0], head[1])
    want = {f"fc.{part}": data for part, data in Halves(refs["fc.weight"]).run().items()}
    want |= {f"head.{part}": data for part, data in Halves(refs["lm_head.weight"]).run().items()}
    for threads, shard_size in ((1, None), (4, None), (4, 5000)):
        out = tmp_path / f"out-{threads}-{shard_size}"
        execute(Plan(planned, {"config.json": {}}, shard_size=shard_size), out, threads=threads)
        found = open_checkpoint(out).tensors
        assert {name: found[name].read() for name in want} == {name: bytes(data) for name, data in want.items()}
        assert found["fc.weight"].read() == refs["fc.weight"].read()
    first, second = contents(tmp_path / "out-1-None"), contents(tmp_path / "out-4-None")
    assert first == second


def test_parts_of_one_file_are_computed_together(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    planned = halves("fc", refs["fc.weight"])
    computation = planned[0].operation
    assert isinstance(computation, Computed)
    assert isinstance(computation.of, Halves)
    progress: list[int] = []
    execute(Plan(planned), tmp_path / "out", progress=progress.append)
    assert computation.of.runs == 1
    assert progress[-1] == refs["fc.weight"].nbytes


def test_the_last_files_are_told_the_hashes_of_what_was_written(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    told: list[Hashes] = []

    def last(hashes: Hashes) -> dict[str, str]:
        told.append(hashes)
        return {"hashes.txt": "\n".join(sorted(hashes.tensors.values()))}

    planned = (*halves("fc", refs["fc.weight"]), *copies(refs))
    execute(Plan(planned, last_files=last, shard_size=2000), tmp_path / "out")
    want = {f"fc.{part}": hashlib.sha256(data).hexdigest() for part, data in Halves(refs["fc.weight"]).run().items()}
    weights = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.glob("out/*.safetensors")}
    assert len(weights) > 1
    assert told == [Hashes(want, weights)]
    assert (tmp_path / "out/hashes.txt").read_text() == "\n".join(sorted(want.values()))


def test_a_part_of_another_length_leaves_nothing_behind(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fc\.low: 1727 bytes, 1728 planned"):
        execute(Plan(halves("fc", refs["fc.weight"], short=True)), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_computed_floats_are_looked_at_when_asked(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    computation = Halves(refs["fc.weight"], broken=True)
    planned = PlannedTensor("scale", "F32", (432,), Computed(computation, "low"))
    with pytest.raises(Refused, match="tensor scale holds NaN or infinity"):
        execute(Plan((planned,)), tmp_path / "out", deep=True)
    execute(Plan((planned,)), tmp_path / "out")


def test_what_is_computed_from_is_never_the_output(source: Path, refs: dict[str, TensorRef]) -> None:
    before = contents(source)
    for out in (source, source / "out", source.parent):
        with pytest.raises(UsageError, match="the source"):
            execute(Plan(halves("fc", refs["fc.weight"])), out, overwrite=True)
    assert contents(source) == before


# ── the hash of a file that is being written ───────────────────────────────────────

SOON = 30
"""Seconds after which a thread that should have gone on counts as hanging."""


@dataclass
class Late(Halves):
    """A computation that runs once something has happened."""

    after: threading.Event = field(default_factory=threading.Event)

    def run(self) -> dict[str, bytes | memoryview]:
        assert self.after.wait(SOON)
        return super().run()


class Slow(Halves):
    """A computation during which others have time to notice something."""

    def run(self) -> dict[str, bytes | memoryview]:
        time.sleep(0.01)
        return super().run()


def parts(name: str, computation: Halves, dtype: str = "U8") -> tuple[PlannedTensor, ...]:
    shape = (computation.ref.nbytes * 4 // SIZES[dtype],)
    return tuple(PlannedTensor(f"{name}.{part}", dtype, shape, Computed(computation, part)) for part in ("low", "high"))


def written_hash(planned: Iterable[PlannedTensor], out: Path, **options: Any) -> str:
    """What `execute` says that the SHA-256 of the weights file is."""
    told: list[str] = []

    def last(hashes: Hashes) -> dict[str, str]:
        told.extend(hashes.files.values())
        return {}

    execute(Plan(tuple(planned), {"config.json": {}}, last_files=last), out, **options)
    assert not hashing()
    return told[0]


def file_hash(out: Path) -> str:
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def hashing() -> list[str]:
    """The threads that still hash."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("draftconv-hash")]


@pytest.mark.parametrize("seed", range(16))
def test_the_hash_is_that_of_the_file_in_whatever_order_its_tensors_lie(
    refs: dict[str, TensorRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    fc, head, norm = refs["fc.weight"], refs["lm_head.weight"], refs["norm.weight"]
    operations: list[tuple[tuple[int, ...], Operation]] = [
        (fc.shape, Copy(fc)),
        (fc.shape, Copy(fc)),
        (norm.shape, Cast(norm, "BF16")),
        (head.shape, Rows(head, tuple(reversed(range(50))), "BF16")),
        ((3,), Literal(b"abcdef")),
        ((0, 24), Cast(refs["empty"], "BF16")),
        *(
            ((ref.nbytes // 4,), Computed(computation, part))
            for ref in (fc, head)
            for computation in [Halves(ref)]
            for part in ("low", "high")
        ),
    ]
    # of one width, so their names are their order in the file
    random.Random(seed).shuffle(operations)
    planned = [PlannedTensor(f"{i:02}", "BF16", shape, made) for i, (shape, made) in enumerate(operations)]
    if seed % 2:
        monkeypatch.setattr(execute_module, "BLOCK", 100)
        monkeypatch.setattr(execute_module, "COPY_CHUNK", 500)
        monkeypatch.setattr(hashing_module, "BLOCK", 64)
    assert written_hash(planned, tmp_path / "out", threads=1 + seed % 4) == file_hash(tmp_path / "out")
    found = open_checkpoint(tmp_path / "out").tensors
    for name, (_, operation) in zip(sorted(found), operations, strict=True):
        if isinstance(operation, Copy):
            assert found[name].read() == operation.ref.read()
        elif isinstance(operation, Computed):
            assert found[name].read() == bytes(operation.of.run()[operation.part])


def test_what_lies_first_is_written_first(refs: dict[str, TensorRef]) -> None:
    """Of each kind, for each has a pool: a hash that follows waits for the first byte that is missing."""
    planned = list(every_operation(refs)[0])
    for name in ("fc.weight", "lm_head.weight"):
        low, high = parts(name, Halves(refs[name]))
        planned += (low, replace(high, dtype="F64", shape=(high.nbytes // 8,)))
    for seed in range(8):
        random.Random(seed).shuffle(planned)
        (shard,) = Plan(tuple(planned)).shards()
        jobs = list(execute_module._jobs(shard))
        for kind in (_Move, _Compute, _Yield):
            starts = [
                job.places[0][1].start if isinstance(job, _Yield) else job.target
                for job in jobs
                if isinstance(job, kind)
            ]
            assert len(starts) > 1
            assert starts == sorted(starts)


def test_what_is_written_first_may_lie_last(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    copied = threading.Event()
    planned = (*parts("a", Late(refs["fc.weight"], after=copied), "F64"), *copies(refs))

    def progress(done: int) -> None:
        if done == sum(ref.nbytes for ref in refs.values()):
            copied.set()

    assert written_hash(planned, tmp_path / "out", progress=progress) == file_hash(tmp_path / "out")


def test_the_hash_follows_what_is_written(
    refs: dict[str, TensorRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, real = threading.Event(), LocalFile.readinto
    copied = sum(ref.nbytes for ref in refs.values())

    def readinto(file: LocalFile, offset: int, buffer: memoryview) -> None:
        real(file, offset, buffer)
        if ".out.draftconv" in file.path.parts and offset + buffer.nbytes >= copied:
            read.set()

    monkeypatch.setattr(LocalFile, "readinto", readinto)
    planned = (*copies(refs), *parts("z", Late(refs["fc.weight"], after=read)))
    assert written_hash(planned, tmp_path / "out") == file_hash(tmp_path / "out")


def test_a_job_that_fails_ends_the_hash(refs: dict[str, TensorRef], tmp_path: Path) -> None:
    for name, planned in {
        "the first bytes": (*parts("a", Halves(refs["fc.weight"], short=True), "F64"), *copies(refs)),
        "the last bytes": (*copies(refs), *parts("z", Halves(refs["fc.weight"], short=True))),
    }.items():
        with pytest.raises(ValueError, match="1727 bytes, 1728 planned"):
            execute(Plan(planned), tmp_path / "out")
        assert not hashing(), name
        assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_file_that_cannot_be_read_ends_the_jobs(
    refs: dict[str, TensorRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object, **__: object) -> str:
        raise BadCheckpoint("model.safetensors cannot be read: Input/output error")

    monkeypatch.setattr(execute_module, "sha256", unreadable)
    computations = [Slow(refs["fc.weight"]) for _ in range(100)]
    planned = [tensor for i, computation in enumerate(computations) for tensor in parts(f"{i:02}", computation)]
    with pytest.raises(BadCheckpoint, match="Input/output error"):
        execute(Plan(tuple(planned)), tmp_path / "out")
    assert sum(computation.runs for computation in computations) < 50
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_what_was_never_written_is_not_published(
    refs: dict[str, TensorRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = execute_module._jobs
    for missing in (0, 1, -1):

        def some(shard: Shard, missing: int = missing) -> list[Any]:
            jobs = list(real(shard))
            del jobs[missing]
            return jobs

        monkeypatch.setattr(execute_module, "_jobs", some)
        with pytest.raises(ValueError, match="bytes planned, nothing was written at"):
            execute(Plan(every_operation(refs)[0]), tmp_path / "out")
        assert not hashing()
        assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("at", [3, 3459])
def test_an_interrupt_ends_the_hash(refs: dict[str, TensorRef], tmp_path: Path, at: int) -> None:
    """While the literal is written, and while the jobs run."""

    def progress(done: int) -> None:
        if done >= at:
            raise KeyboardInterrupt

    planned = (PlannedTensor("map", "U8", (3,), Literal(b"abc")), *copies(refs))
    with pytest.raises(KeyboardInterrupt):
        execute(Plan(planned), tmp_path / "out", progress=progress)
    assert not hashing()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_disk_that_refuses_ends_the_hash(
    refs: dict[str, TensorRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WriteError, match="Input/output error"):
        execute(Plan(copies(refs)), tmp_path / "out")
    assert not hashing()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
