"""What a long computation has done so far, beside the output that it is for, so that a stopped run goes on.

It lies in the hidden sibling `.{out}.calibration/`. The same command finds it again; one that would compute something
else removes it and begins anew. An error that would only come again removes it too. Nothing in it could be mistaken for
an output.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftconv.checkpoint.directories import parents_made
from draftconv.checkpoint.staging import claimed, refuse_long_name, write_error, write_new
from draftconv.errors import DraftconvError, WriteError

KEY, WORK = "key", "work"


@contextmanager
def kept_work(out: Path, key: str) -> Iterator[Path]:
    """A directory for what a computation has done; it is removed when the block ends, unless the run was stopped.

    Args:
        key: what is computed, and from what. What was kept under another one is removed.

    Raises:
        UsageError: the name of the output is too long.
        WriteError: another run is writing `out`, or the file system refuses.
    """
    out = out.absolute()
    room = out.with_name(f".{out.name}.calibration")
    refuse_long_name(out, with_name=room.name)
    try:
        with parents_made(out), claimed(room):
            _keep_only(room, key)
            try:
                yield room / WORK
            except WriteError:
                raise  # with more room on the disk it goes on
            except DraftconvError:
                _remove(room)
                raise
            _remove(room)
    except OSError as error:
        raise write_error(error, out, why=f"what was done so far is in {room.name} beside it") from error


def _keep_only(room: Path, key: str) -> None:
    """Leave what was kept under this key, and nothing else."""
    if not (room / KEY).is_file() or (room / KEY).read_text(encoding="utf-8") != key:
        _remove(room)
        write_new(room / KEY, key.encode())
    (room / WORK).mkdir(exist_ok=True)


def _remove(room: Path) -> None:
    (room / KEY).unlink(missing_ok=True)
    if (room / WORK).is_dir():
        shutil.rmtree(room / WORK)
