"""What is left behind when a disk fills up, a limit bites, or a process dies."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftconv.checkpoint import Copy, Plan, PlannedTensor, open_checkpoint
from draftconv.checkpoint import execute as execute_module
from draftconv.checkpoint.execute import execute
from draftconv.errors import WriteError
from tests.checkpoint.made import ANYTHING

MIB = 1024 * 1024

WRITER = """
import sys
from pathlib import Path
from draftconv.checkpoint import Cast, Plan, PlannedTensor, open_checkpoint
from draftconv.checkpoint.execute import execute
from draftconv.checkpoint.staging import OwnershipMark, FileDigest
anything = OwnershipMark("draftconv.json", lambda path: {item.name: FileDigest() for item in path.iterdir()})
source, out = map(Path, sys.argv[1:])
refs = open_checkpoint(source).tensors.values()
plan = Plan(
    tuple(PlannedTensor(ref.name, "F32", ref.shape, Cast(ref, "F32")) for ref in refs),
    {"draftconv.json": {}, "config.json": {}},
)
execute(plan, out, overwrite=True, mark=anything, progress=lambda done: print(done, flush=True))
"""
"""Overwrites again and again; says how far it is."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    save_file({f"t{i}": torch.full((512, 1024), float(i)).bfloat16() for i in range(8)}, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    return path


def copy_plan(source: Path) -> Plan:
    refs = open_checkpoint(source).tensors.values()
    return Plan(tuple(PlannedTensor(ref.name, ref.dtype, ref.shape, Copy(ref)) for ref in refs), {"config.json": {}})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(source: Path, small_disk: Path) -> None:
    with pytest.raises(WriteError, match="out could not be written: there is no room left") as caught:
        execute(copy_plan(source), small_disk / "out")
    assert caught.value.why == "nothing was left behind"
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_fills_up_while_writing(source: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where room cannot be claimed beforehand, the error comes later and is the same."""
    monkeypatch.setattr(execute_module, "reserve", os.ftruncate)
    with pytest.raises(WriteError, match="there is no room left"):
        execute(copy_plan(source), small_disk / "out")
    assert list(small_disk.iterdir()) == []


def test_another_file_system_is_copied_to(source: Path, small_disk: Path) -> None:
    ref = open_checkpoint(source).tensors["t3"]
    execute(Plan((PlannedTensor("t3", ref.dtype, ref.shape, Copy(ref)),)), small_disk / "out")
    assert (load_file(small_disk / "out/model.safetensors")["t3"] == 3).all()


def test_a_read_only_file_system(source: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(WriteError, match="out could not be written: Read-only file system"):
        execute(copy_plan(source), small_disk / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory(source: Path, tmp_path: Path) -> None:
    parent = tmp_path / "locked"
    parent.mkdir(mode=0o500)
    with pytest.raises(WriteError, match="out could not be written: Permission denied"):
        execute(copy_plan(source), parent / "out")


def test_a_file_size_limit(source: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        with pytest.raises(WriteError, match="a file would exceed the size limit"):
            execute(copy_plan(source), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def started(source: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(source), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_kill_leaves_an_old_output_or_a_whole_new_one(source: Path, tmp_path: Path) -> None:
    """kill -9 at any moment: `out` is whole, the rest is one hidden directory, the next run removes it."""
    place = tmp_path / "place"
    place.mkdir()
    out = place / "out"
    chance = random.Random(0)
    outcomes = set()
    for _ in range(6):
        process = started(source, out)
        assert process.stdout is not None
        if process.stdout.readline():
            time.sleep(chance.uniform(0, 0.03))
        process.kill()
        process.communicate()
        outcomes.add(process.returncode)
        assert {path.name for path in place.iterdir()} <= {"out", ".out.draftconv"}
        if out.exists():
            assert {name: float(tensor[0, 0]) for name, tensor in load_file(out / "model.safetensors").items()} == {
                f"t{i}": float(i) for i in range(8)
            }
    assert -signal.SIGKILL in outcomes
    execute(Plan(copy_plan(source).tensors, {"draftconv.json": {}}), out, overwrite=True, mark=ANYTHING)
    assert [path.name for path in place.iterdir()] == ["out"]


def test_interrupt_leaves_nothing(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    process = started(source, place / "out")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate()
    if process.returncode == 0:
        pytest.skip("it had finished before the signal came")
    assert "KeyboardInterrupt" in talk
    assert list(place.iterdir()) == []


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """128 MiB go in and 256 MiB come out; the process never holds more than a few blocks."""
    path = tmp_path / "source"
    path.mkdir()
    ones = torch.ones(16 * MIB, dtype=torch.bfloat16)
    save_file({f"t{i}": ones.clone() for i in range(4)}, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    # VmHWM counts this program alone; ru_maxrss would include the parent it was forked from
    code = WRITER + "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 130 * 1024
