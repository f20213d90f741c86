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

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef, show
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.headers import read_header
from draftconv.errors import BadCheckpoint, EngineError, Void
from draftconv.parity.trace import DTYPES

PATIENCE = 300.0
"""Seconds to wait for a file whose request is answered; Kimi-K2 writes 43 kB a token."""

_POLL = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """What vLLM made of one prompt, and the file that it says holds the states."""

    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    file: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a file of this trace must hold.

    Attributes:
        dtype: a key of `DTYPES`.
    """

    boundaries: tuple[int, ...]
    hidden: int
    dtype: str


def take_states(answer: Answer, wanted: Wanted, storage: Path, *, patience: float = PATIENCE) -> Tensor:
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
    with _written(path, lock, patience):
        try:
            with LocalFile(path) as file:
                states_TAW = _read(answer, wanted, file)
        except BadCheckpoint as error:
            raise _void(path, error.what) from error
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
def _written(path: Path, lock: Path, patience: float) -> Iterator[None]:
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
        while not _shared(descriptor):
            if time.monotonic() > deadline:
                raise _void(path, f"{show(path.name)} was still being written after {patience:g} s")
            time.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


def _shared(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(answer: Answer, wanted: Wanted, file: LocalFile) -> Tensor:
    """Every check of what is in the file, cheapest first."""
    tensors = read_header(file).tensors
    states, ids = tensors.get("hidden_states"), tensors.get("token_ids")
    if states is None or ids is None:
        raise _void(file.path, f"{show(file.name)} holds no {'token_ids' if states else 'hidden_states'}")
    tokens = (*answer.prompt, *answer.generated)
    rows = len(tokens) - 1
    if ids.dtype != "I64" or ids.shape != (rows,):
        short = ids.shape == (len(answer.prompt),) and rows != len(answer.prompt)
        raise _void(
            file.path,
            f"{show(file.name)} has token_ids {ids.dtype} {list(ids.shape)}; {len(answer.prompt)} prompt and "
            f"{len(answer.generated)} generated tokens make I64 [{rows}]"
            + (": the prompt alone, include_output_tokens was ignored" if short else ""),
        )
    shape = (rows, len(wanted.boundaries), wanted.hidden)
    if (states.dtype, states.shape) != (DTYPES[wanted.dtype], shape):
        raise _void(
            file.path,
            f"{show(file.name)} has hidden_states {states.dtype} {list(states.shape)}; {rows} rows, boundaries "
            f"{list(wanted.boundaries)} and width {wanted.hidden} make {DTYPES[wanted.dtype]} {list(shape)}",
        )
    held = struct.unpack(f"<{rows}q", ids.read())
    if held != tokens[:rows]:
        first = next(i for i, (ours, theirs) in enumerate(zip(tokens, held, strict=False)) if ours != theirs)
        raise _void(
            file.path,
            f"{show(file.name)} holds token {held[first]} at position {first}, the answer {tokens[first]}",
        )
    states_TAW = _tensor(states, wanted.dtype)
    if not bool(states_TAW.isfinite().all()):
        raise _void(file.path, f"{show(file.name)} holds states that are not finite")
    empty_T = (states_TAW == 0).flatten(1).all(1)
    if bool(empty_T.any()):
        raise _void(
            file.path,
            f"{show(file.name)}: the states at {int(empty_T.sum())} of {rows} positions are all zero, "
            f"first at {int(empty_T.nonzero()[0])}: they were never written",
        )
    return states_TAW


def _tensor(ref: TensorRef, dtype: str) -> Tensor:
    raw = bytearray(ref.nbytes)
    ref.file.readinto(ref.offset, memoryview(raw))
    kind: torch.dtype = getattr(torch, dtype)
    return torch.frombuffer(raw, dtype=kind).reshape(ref.shape)


def _void(path: Path, what: str) -> Void:
    return Void(
        what,
        why="a short or shifted file of hidden states measures nothing and cannot be repaired",
        cure="start the server as `draftconv trace` prints it (no prefix caching, no chunked prefill); "
        f"the file is kept: {show(path)}",
    )
