"""States that are read a few rows at a time: from memory, from a trace, on the way into one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from draftconv.errors import BadCheckpoint
from draftconv.traces import states as states_module
from draftconv.traces.request import TraceRequest
from draftconv.traces.spool import BatchSpool, spool_size
from draftconv.traces.states import StoredStates, raw, state_blocks
from tests.traces import made

ROW = 3 * 6 * 2
"""Bytes of a row of a made trace."""


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows may be in memory."""
    monkeypatch.setattr(states_module, "IN_MEMORY", 2 * ROW)


def read(out: Path, index: int = 2) -> TraceRequest:
    trace = made.trace(out)
    return trace.read(trace.entries[index], (2, 4, 5))


@pytest.mark.usefixtures("limited")
def test_long_states_stay_in_their_file(tmp_path: Path) -> None:
    given, found = made.captured(2).states_TAW[:], read(tmp_path / "out").states_TAW
    assert isinstance(found, StoredStates)
    assert (tuple(found.shape), found.dtype, len(found)) == (tuple(given.shape), torch.bfloat16, len(given))
    for rows in (slice(None), slice(1, 3), slice(2, 99), slice(5, 2), slice(-2, None)):
        assert torch.equal(found[rows], given[rows])


def test_short_ones_are_a_tensor(tmp_path: Path) -> None:
    assert isinstance(read(tmp_path / "out").states_TAW, torch.Tensor)


@pytest.mark.usefixtures("limited")
def test_columns_come_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    trace, given = made.trace(tmp_path / "out"), made.captured(1).states_TAW[:]
    assert torch.equal(trace.read(trace.entries[1], (5, 2)).states_TAW[:], given[:, [2, 0]])
    assert torch.equal(trace.read(trace.entries[1], (4,)).states_TAW[1:3], given[1:3, [1]])


@pytest.mark.usefixtures("limited")
def test_one_altered_byte_is_noticed_before_a_row_is_used(tmp_path: Path) -> None:
    trace = made.trace(tmp_path / "out")
    file = tmp_path / "out/requests/000002.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(BadCheckpoint, match="does not hold the hidden states"):
        trace.read(trace.entries[2], (2, 4, 5))


@pytest.mark.usefixtures("limited")
def test_a_trace_has_the_same_bytes_whatever_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.trace(tmp_path / "blocks")
    monkeypatch.undo()
    made.trace(tmp_path / "whole")
    for path in (tmp_path / "whole").rglob("*.*"):
        assert (tmp_path / "blocks" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


@pytest.mark.usefixtures("limited")
def test_blocks_are_all_rows_in_order() -> None:
    states_TAW = made.captured(2).states_TAW
    blocks = list(state_blocks(states_TAW))
    assert {len(block) for block in blocks[:-1]} == {2}
    assert torch.equal(torch.cat(blocks), states_TAW[:])


def test_raw_is_what_lies_in_memory() -> None:
    states_TAW = made.captured(2).states_TAW[:]
    turned = states_TAW.transpose(1, 2)
    assert bytes(raw(states_TAW)) == states_TAW.view(torch.uint8).numpy().tobytes()
    assert hashlib.sha256(raw(turned)).digest() == hashlib.sha256(raw(turned.contiguous())).digest()


def test_a_batch_is_kept_without_its_padding(tmp_path: Path) -> None:
    """Two requests of 5 and 2 rows, in passes of 2, 2 and 1 rows."""
    rows_BTAW = torch.arange(2 * 5 * 3 * 6).reshape(2, 5, 3, 6).bfloat16()
    spool = BatchSpool(tmp_path, [0, 3])
    for part in rows_BTAW.split(2, dim=1):
        spool.append(part)
    long, short = spool.requests
    assert torch.equal(long[:], rows_BTAW[0])
    assert torch.equal(short[:], rows_BTAW[1, 3:])
    long.cut(4)
    long.cut(9)
    assert torch.equal(long[:], rows_BTAW[0, :4])
    assert torch.equal(long[3:], rows_BTAW[0, 3:4])
    assert len(long[4:]) == 0


def test_only_long_requests_take_files_on_the_way() -> None:
    assert spool_size(1 << 24, 8) == 0
    assert spool_size((1 << 24) + 1, 8) == 8 * ((1 << 24) + 1)
