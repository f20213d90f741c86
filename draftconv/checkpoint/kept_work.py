"""What a long computation has done so far, beside the output that it is for, so that a stopped run goes on.

It lies in a hidden sibling that is called by what it is, `.{out}.calibration/` or `.{out}.search/`. The same command
finds it again; one that would compute something else removes it and begins anew. An error that would only come again
removes it too. Nothing in it could be mistaken for an output.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from draftconv.checkpoint.directories import parents_made
from draftconv.checkpoint.staging import claimed, refuse_long_name, write_error, write_new
from draftconv.errors import DraftconvError, WriteError

logger = logging.getLogger(__name__)

KEY, WORK = "key", "work"

Kind = Literal["calibration", "search"]
"""What is computed, as its directory is called."""


def room_of(out: Path, kind: Kind) -> Path:
    """Where what was done for an output is kept."""
    return out.parent / f".{out.name}.{kind}"


@contextmanager
def kept_work(out: Path, key: str, kind: Kind, announce: Callable[[str], None] | None = None) -> Iterator[Path]:
    """A directory for what a computation has done; it is removed when the block ends, unless the run was stopped.

    Args:
        key: what is computed, and from what. What was kept under another one is removed.
        announce: told, before anything is done, that this run goes on with what an earlier one did.

    Raises:
        UsageError: the name of the output is too long.
        WriteError: another run is writing `out`, or the file system refuses.
    """
    out = out.absolute()
    room = room_of(out, kind)
    refuse_long_name(out, with_name=room.name)
    try:
        with parents_made(out), claimed(room):
            _keep_only(room, key)
            if _has_work(room):
                line = f"going on with what an earlier run did, which is in {room.name} beside {out.name}"
                logger.info("%s", line)
                if announce is not None:
                    announce(line)
            try:
                yield room / WORK
            except WriteError:
                raise  # with more room on the disk it goes on
            except KeyboardInterrupt:
                if not _has_work(room):
                    _remove(room)
                raise
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


def _has_work(room: Path) -> bool:
    """Whether anything was done."""
    return any((room / WORK).iterdir())


def _remove(room: Path) -> None:
    (room / KEY).unlink(missing_ok=True)
    if (room / WORK).is_dir():
        shutil.rmtree(room / WORK)
