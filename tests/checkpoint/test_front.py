import hashlib
import itertools
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftconv.checkpoint import hashing
from draftconv.checkpoint.files import DataFile
from draftconv.checkpoint.front import Front
from draftconv.checkpoint.hashing import sha256
from tests.checkpoint.made import MemoryFile

SOON = 30
"""Seconds after which a thread that should have ended or gone on counts as hanging."""

Ranges = list[tuple[int, int]]


@st.composite
def ranges(draw: st.DrawFn) -> Ranges:
    """A file of at least one byte cut into ranges, empty ones among them, in any order."""
    cuts = sorted(draw(st.lists(st.integers(0, 60), max_size=12)))
    size = draw(st.integers(max(cuts, default=0) + 1, 64))
    return draw(st.permutations(list(itertools.pairwise([0, *cuts, size]))))


def end(told: Ranges) -> int:
    return max(stop for _, stop in told)


@settings(max_examples=200)
@given(ranges())
def test_it_is_where_the_first_byte_is_missing(told: Ranges) -> None:
    size = end(told)
    front, written = Front(size), bytearray(size)
    for start, stop in told:
        front.wrote(start, stop)
        written[start:stop] = b"\1" * (stop - start)
        assert front.after(-1) == (written.index(0) if 0 in written else size)
    front.refuse_gap()


@given(ranges(), st.data())
def test_it_does_not_pass_a_range_that_is_missing(told: Ranges, data: st.DataObject) -> None:
    start, stop = data.draw(st.sampled_from([(start, stop) for start, stop in told if start < stop]))
    front = Front(end(told))
    for other in told:
        if other != (start, stop):
            front.wrote(*other)
    assert front.after(-1) == start
    with pytest.raises(ValueError, match=f"{end(told)} bytes planned, nothing was written at {start}"):
        front.refuse_gap()


def test_who_waits_goes_on_with_what_was_written() -> None:
    with ThreadPoolExecutor(1) as pool, Front(30) as front:
        waiting = pool.submit(front.after, 0)
        front.wrote(10, 20)
        assert not waiting.done()
        front.wrote(0, 10)
        assert waiting.result(SOON) == 20
        assert front.after(19) == 20


@contextmanager
def read_behind(file: DataFile, front: Front) -> Iterator[Future[str]]:
    with ThreadPoolExecutor(1) as pool, front:
        yield pool.submit(sha256, file, after=front.after)


@pytest.mark.parametrize("written", [[], [(10, 20)], [(0, 10)], [(0, 10), (20, 30)]])
def test_leaving_ends_the_waiting_without_a_hash(written: Ranges) -> None:
    front = Front(30)
    with read_behind(MemoryFile(bytes(30)), front) as digest:
        for start, stop in written:
            front.wrote(start, stop)
    with pytest.raises(CancelledError):
        digest.result(SOON)


class GrowingFile(MemoryFile):
    """Fails the test when a byte is read before it was put there."""

    def __init__(self, size: int) -> None:
        super().__init__(bytes(size))
        self.missing = set(range(size))

    def put(self, start: int, data: bytes) -> None:
        self.data = self.data[:start] + data + self.data[start + len(data) :]
        self.missing -= set(range(start, start + len(data)))

    def read(self, offset: int, length: int) -> bytes:
        assert self.missing.isdisjoint(range(offset, offset + length))
        return super().read(offset, length)


@given(ranges(), st.sampled_from([1, 7, 4096]), st.data())
def test_a_hash_that_follows_is_that_of_the_whole_file(told: Ranges, block: int, data: st.DataObject) -> None:
    size = end(told)
    content = data.draw(st.binary(min_size=size, max_size=size))
    file, front = GrowingFile(size), Front(size)
    with pytest.MonkeyPatch.context() as patch, read_behind(file, front) as digest:
        patch.setattr(hashing, "BLOCK", block)
        for start, stop in told:
            file.put(start, content[start:stop])
            front.wrote(start, stop)
        assert digest.result(SOON) == hashlib.sha256(content).hexdigest()
