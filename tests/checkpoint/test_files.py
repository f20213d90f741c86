import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftconv.checkpoint.files import LocalFile
from draftconv.errors import BadCheckpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(range(256)) * 16)
    return path


def test_reads_any_range(path: Path) -> None:
    with LocalFile(path) as file:
        assert (file.name, file.size) == ("x.safetensors", 4096)
        assert file.read(250, 10) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3])
        buffer = bytearray(4)
        file.readinto(4092, memoryview(buffer))
        assert buffer == bytes([252, 253, 254, 255])
        assert file.read(4096, 0) == b""


@pytest.mark.parametrize(("offset", "length"), [(0, 4097), (4096, 1), (-1, 2), (0, -1), (2**70, 2**70)])
def test_refuses_ranges_outside(path: Path, offset: int, length: int) -> None:
    with LocalFile(path) as file, pytest.raises(BadCheckpoint, match=r"x\.safetensors is too short"):
        file.read(offset, length)


def test_notices_a_file_that_shrinks(path: Path) -> None:
    with LocalFile(path) as file:
        os.truncate(path, 10)
        with pytest.raises(BadCheckpoint, match="became shorter"):
            file.read(0, 20)
        with pytest.raises(BadCheckpoint, match="became shorter"):
            file.readinto(0, memoryview(bytearray(20)))


def test_refuses_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, fault in (("pipe", "not a regular file"), ("none", "No such file")):
        with pytest.raises(BadCheckpoint, match=fault):
            LocalFile(tmp_path / name)
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        LocalFile(tmp_path / "nul\0nul")


def descriptors(path: Path) -> int:
    """How many descriptors this process holds on a file; those of other tests come and go with the collector."""
    return sum(os.path.realpath(link) == str(path) for link in Path("/proc/self/fd").iterdir())


def test_is_opened_late_and_closed_with_the_object(path: Path) -> None:
    files = [LocalFile(path) for _ in range(20)]
    assert descriptors(path) == 0
    for file in files:
        file.read(0, 1)
    assert descriptors(path) == 20
    del file, files
    assert descriptors(path) == 0


def test_threads_share_a_file(path: Path) -> None:
    with LocalFile(path) as file, ThreadPoolExecutor(8) as pool:
        assert b"".join(pool.map(lambda i: file.read(i * 16, 16), range(256))) == path.read_bytes()
