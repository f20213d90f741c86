"""The file that vLLM's hidden-state connector writes per request: waited for, checked, read and removed.

`hidden_states` [n, A, W] in the model's dtype and `token_ids` I64 [n], where n = prompt + generated - 1:
the last generated token never entered the target. Row t is the residual stream at position t,
columns in ascending boundary order. Everything in it is checked against what was asked and
answered, because the file itself says nothing of where it comes from. Which boundaries it holds
cannot be checked beyond their number: that is what the server was started with.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.headers import read_header
from draftconv.engines.vllm.tracing.start import DTYPES
from draftconv.errors import BadCheckpoint, EngineError, Void
from draftconv.reference.load import to_torch

_POLL = 0.01


@dataclass(frozen=True, slots=True)
class StatesFile:
    """What vLLM made of one prompt, and the file that it says holds the states.

    Attributes:
        logprobs: log p of every generated token, where it was asked for.
    """

    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    file: str
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ExpectedStates:
    """What a file of this trace must hold.

    Attributes:
        dtype: a key of `DTYPES`.
        start: the command that makes vLLM write such files, for messages.
    """

    boundaries: tuple[int, ...]
    hidden: int
    dtype: str
    start: str


def take_states(
    answer: StatesFile, expected: ExpectedStates, storage: Path, *, patience: float = limits.ENGINE_FILE.value
) -> Tensor:
    """Read the states of an answered request and remove its files.

    Args:
        storage: the only directory that may be read from; the name in the answer is untrusted.
        patience: seconds to wait until vLLM has written the file.

    Returns:
        [prompt + generated - 1, A, W] in the target's dtype. A file that fails a check stays where it is.

    Raises:
        EngineError: the file lies elsewhere, or is not to be seen from this machine.
        Void: it was never finished, or a check failed.
    """
    path = _inside(answer.file, storage)
    lock = path.with_name(f"{path.name}.lock")
    try:
        with _shared_lock(path, lock, patience), LocalFile(path) as file:
            states_TAW = _read(answer, expected, file)
    except BadCheckpoint as error:
        raise Void(
            error.what,
            why="a short or shifted file of hidden states measures nothing and cannot be repaired",
            cure=f"the file is kept at {show(path)}; compare how vLLM was started with: {expected.start}",
        ) from error
    path.unlink()
    lock.unlink()
    return states_TAW


def _inside(file: str, storage: Path) -> Path:
    """The file, if it lies directly in the directory, links followed."""
    path = None if "\0" in file else Path(os.path.realpath(file))
    if path is None or path.parent != Path(os.path.realpath(storage)) or path.suffix != ".safetensors":
        raise EngineError(
            f"the server wrote hidden states to {show(file)}, which is no safetensors file in {show(storage)}",
            why="a server could point at any file of yours, so only that directory is read",
            cure="give --hidden-states-dir the directory that the server was started with (shared_storage_path)",
        )
    return path


@contextmanager
def _shared_lock(path: Path, lock: Path, patience: float) -> Iterator[None]:
    """Hold a shared lock, which vLLM's exclusive one lets through once the file is written."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise EngineError(
            f"{show(path.name)} has no lock file beside it ({error.strerror})",
            why="without it nobody knows when the file is complete; vLLM makes it before it answers",
            cure="run draftconv where the server's files are, and leave use_synchronization_lock on",
        ) from error
    try:
        deadline = time.monotonic() + patience
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise BadCheckpoint(f"{show(path.name)} was still being written after {patience:g} s")
            time.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(answer: StatesFile, expected: ExpectedStates, file: LocalFile) -> Tensor:
    """Every check of what is in the file, cheapest first; BadCheckpoint when one fails."""
    name, tensors = show(file.name), read_header(file).tensors
    states, ids = tensors.get("hidden_states"), tensors.get("token_ids")
    if states is None or ids is None:
        raise BadCheckpoint(f"{name} holds no {'token_ids' if states else 'hidden_states'}")
    prompt, tokens = len(answer.prompt), (*answer.prompt, *answer.generated)
    rows = len(tokens) - 1
    if (ids.dtype, ids.shape) != ("I64", (rows,)):
        cut = ids.shape == (prompt,) != (rows,)
        raise BadCheckpoint(
            f"{name} has token_ids {ids.dtype} {list(ids.shape)}; {prompt} prompt and {len(answer.generated)} "
            f"generated tokens make I64 [{rows}]{': include_output_tokens was ignored' if cut else ''}"
        )
    shape = (rows, len(expected.boundaries), expected.hidden)
    if (states.dtype, states.shape) != (DTYPES[expected.dtype], shape):
        raise BadCheckpoint(
            f"{name} has hidden_states {states.dtype} {list(states.shape)}; {rows} rows, boundaries "
            f"{list(expected.boundaries)} and width {expected.hidden} make {DTYPES[expected.dtype]} {list(shape)}"
        )
    held = struct.unpack(f"<{rows}q", ids.read())
    for position, (mine, theirs) in enumerate(zip(tokens[:rows], held, strict=True)):
        if mine != theirs:
            raise BadCheckpoint(f"{name} holds token {theirs} at position {position}, the answer {mine}")
    states_TAW = to_torch(states)
    if not bool(states_TAW.isfinite().all()):
        raise BadCheckpoint(f"{name} holds states that are not finite")
    empty = (states_TAW == 0).flatten(1).all(1).nonzero().flatten().tolist()
    if empty:
        raise BadCheckpoint(
            f"{name}: the states at {len(empty)} of {rows} positions are all zero, first at {empty[0]}: "
            "they were never written"
        )
    return states_TAW
