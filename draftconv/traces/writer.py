"""Writing a trace: a request at a time, each whole or not at all, so that a stopped run goes on.

The directory holds `trace.partial.json` from the first moment and `trace.json` only at the
end. Every file is written under another name, synced and renamed, so a request that is there
is complete.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef, encode_header, row_blocks, show
from draftconv.checkpoint.directories import parents_made, sync_directory
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.checkpoint.headers import HeaderEntry
from draftconv.checkpoint.local import LocalDirectory
from draftconv.checkpoint.staging import occupied, refuse_long_name, write_error
from draftconv.errors import BadCheckpoint, UsageError, Void, WriteError
from draftconv.traces.states import StateRows, raw, state_blocks
from draftconv.traces.trace import (
    BLOCK,
    DTYPES,
    FORMAT,
    INDEX,
    PARTIAL,
    REQUESTS,
    TABLES,
    TOKENIZER,
    VERSION,
    TargetTable,
    Trace,
    TraceEntry,
    TraceInfo,
    about_json,
    open_request,
    open_trace,
    read_document,
    request_json,
    token_hash,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Slot:
    """A request that the trace will hold; see `trace.TraceEntry`."""

    id: str
    cluster: str
    category: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class CapturedText:
    """What a target made of one prompt.

    Attributes:
        prompt: prompt tokens P. `counted`: generated tokens that count, EOS included.
        tokens_N: int64 [P + counted + depth].
        states_TAW: [P + counted + depth - 1, A, W] in the target's dtype; row t belongs to token t.
            A slice of rows is a tensor.
        logprobs_N: float32 [counted + depth], of sampled text; see `request.TraceRequest`.
    """

    prompt: int
    counted: int
    tokens_N: Tensor
    states_TAW: StateRows
    logprobs_N: Tensor | None = None


class TraceWriter:
    """A trace in the making. As a context manager it holds the directory against other runs.

    Args:
        out: a directory that does not exist, is empty, or holds an incomplete trace of the same settings.
        slots: all requests in order; request i goes to requests/{i:06}.safetensors.
        tables: `embed_tokens` and `lm_head` as they lie in the target's files (or in memory).
        link: record where the tables lie instead of copying them.
        tokenizer: contents of the target's tokenizer.json.

    Raises:
        WriteError: `out` holds something else or a complete trace, or cannot be written.
        UsageError: it was begun with other settings or prompts; or `link` and a table that is in no file.
    """

    def __init__(
        self,
        out: Path,
        about: TraceInfo,
        slots: Sequence[Slot],
        *,
        tables: Mapping[str, TensorRef],
        link: bool = False,
        tokenizer: bytes | None = None,
    ) -> None:
        self.out, self.about, self.slots = out, about, tuple(slots)
        self._sources, self._link, self._tokenizer = tables, link, tokenizer
        self._tables: dict[str, TargetTable] = {}
        self._entries: dict[int, TraceEntry] = {}
        self._lock = -1

    def __enter__(self) -> Self:
        refuse_occupied(self.out)
        try:
            with parents_made(self.out / PARTIAL):
                self._lock = _locked(self.out)
                try:
                    self._begin()
                except BaseException:
                    os.close(self._lock)
                    raise
        except OSError as error:
            raise write_failed(error, self.out) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def held(self, index: int) -> CapturedText | None:
        """Request `index` as an earlier run wrote it, without its states [0, A, W]; None when it is still to be made.

        Raises:
            BadCheckpoint: the file is there and is not this request.
        """
        name = _file(index)
        if not (self.out / REQUESTS / name).exists():
            return None
        file = open_request(self._requests, name, self.about)
        if file.metadata.get("id") != self.slots[index].id:
            raise BadCheckpoint(
                f"{REQUESTS}/{name} is request {show(file.metadata.get('id'))}, not {show(self.slots[index].id)}",
                why="the incomplete trace was edited",
                cure="remove the file and give the same command again",
            )
        tokens = file.tokens()
        counted = len(tokens) - file.prompt - self.about.depth
        if index not in self._entries:
            drawn = tensor_hash(file.logprobs) if file.logprobs else ""
            entry = self._entry(index, file.prompt, counted, tokens, tensor_hash(file.states), drawn)
            noted = tuple(file.metadata.get(name, "") for name in ("tokens", "states", "logprobs"))
            if (entry.tokens, entry.states, entry.logprobs) != noted:
                raise BadCheckpoint(
                    f"{REQUESTS}/{name} does not hold what was written to it",
                    why="a replay would measure something else than the target did",
                    cure="remove the file and give the same command again",
                )
            self._entries[index] = entry
        nothing = torch.empty((0, *file.states.shape[1:]), dtype=getattr(torch, self.about.dtype))
        return CapturedText(file.prompt, counted, torch.tensor(tokens), nothing)

    def write(self, index: int, captured: CapturedText) -> None:
        """Store request `index`.

        Raises:
            Void: tokens and states do not fit each other or the trace, or a state is not finite.
            WriteError: the file system refuses.
        """
        slot, about = self.slots[index], self.about
        self._check(slot, captured)
        tokens, states = [int(token) for token in captured.tokens_N.tolist()], captured.states_TAW
        pieces: dict[str, tuple[str, Sequence[int], int, Iterable[bytes | memoryview]]] = {
            "token_ids": ("I64", (len(tokens),), 8 * len(tokens), [struct.pack(f"<{len(tokens)}q", *tokens)]),
            "prompt_len": ("I64", (1,), 8, [struct.pack("<q", captured.prompt)]),
            "hidden_states": (
                DTYPES[about.dtype],
                tuple(states.shape),
                math.prod(states.shape) * states.dtype.itemsize,
                map(raw, state_blocks(states)),
            ),
        }
        if (logprobs_N := captured.logprobs_N) is not None:
            pieces["logprobs"] = ("F32", tuple(logprobs_N.shape), logprobs_N.nbytes, [raw(logprobs_N)])
        entries: list[HeaderEntry] = []
        for name, (dtype, shape, size, _) in pieces.items():
            start = entries[-1].stop if entries else 0
            entries.append(HeaderEntry(name, dtype, tuple(shape), start, start + size))
        digest, drawn = _digest_of(state_blocks(states)), _drawn_digest(captured)
        metadata = {"format": "pt", "id": slot.id, "tokens": token_hash(tokens), "states": digest}
        metadata |= {"logprobs": drawn} if drawn else {}
        header = encode_header(entries, metadata)
        path = self.out / REQUESTS / _file(index)
        self._publish(path, chain([header], *(data for *_, data in pieces.values())))
        self._entries[index] = self._entry(index, captured.prompt, captured.counted, tokens, digest, drawn)

    def finish(self) -> Trace:
        """Write trace.json and open the trace.

        Raises:
            UsageError: a request is missing.
        """
        missing = [slot.id for index, slot in enumerate(self.slots) if self.held(index) is None]
        if missing:
            raise UsageError(f"{len(missing)} of {len(self.slots)} requests are missing, first {show(missing[0])}")
        tables = {name: asdict(table) for name, table in self._tables.items()}
        rows = [request_json(self._entries[index]) for index in range(len(self.slots))]
        self._publish(self.out / INDEX, (_json({**_header(self.about), "tables": tables, "requests": rows}),))
        try:
            (self.out / PARTIAL).unlink()
        except OSError as error:
            logger.warning("%s could not be removed (%s); with %s beside it nobody reads it", PARTIAL, error, INDEX)
        return open_trace(self.out)

    def _begin(self) -> None:
        """Say what is being made, or check that it is what was begun."""
        kinds = dict.fromkeys(self._sources, "linked" if self._link else "stored")
        settings = {**_header(self.about), "tables": kinds, "requests": [request_json(slot) for slot in self.slots]}
        listing = LocalDirectory(self.out)
        if PARTIAL in listing.files:
            _same_settings(read_document(listing, PARTIAL).data, json.loads(_json(settings)), self.out)
        else:
            self._publish(self.out / PARTIAL, (_json(settings),))
        for name in (REQUESTS, TABLES):
            (self.out / name).mkdir(exist_ok=True)
        self._requests = LocalDirectory(self.out / REQUESTS)
        for name, ref in self._sources.items():
            self._tables[name] = self._linked(name, ref) if self._link else self._stored(name, ref)
        if self._tokenizer is not None:
            self._publish(self.out / TOKENIZER, (self._tokenizer,))

    def _linked(self, name: str, ref: TensorRef) -> TargetTable:
        if not isinstance(ref.file, LocalFile):
            raise UsageError(
                f"--link-tables: the target's {name} lies in no safetensors file on this machine",
                cure="leave --link-tables out, so that the table is stored in the trace",
            )
        return TargetTable(os.path.abspath(ref.file.path), ref.name, tensor_hash(ref), linked=True)  # noqa: PTH100

    def _stored(self, name: str, ref: TensorRef) -> TargetTable:
        tensor, digest = f"{name}.weight", hashlib.sha256()

        def pieces() -> Iterable[bytes]:
            yield encode_header([HeaderEntry(tensor, ref.dtype, ref.shape, 0, ref.nbytes)], {"format": "pt"})
            for start, stop in row_blocks(ref, BLOCK):
                block = ref.rows(start, stop)
                digest.update(block)
                yield block

        file = f"{TABLES}/{name}.safetensors"
        self._publish(self.out / file, pieces())
        return TargetTable(file, tensor, digest.hexdigest())

    def _entry(
        self, index: int, prompt: int, counted: int, tokens: Sequence[int], states: str, logprobs: str
    ) -> TraceEntry:
        slot = self.slots[index]
        return TraceEntry(
            slot.id,
            slot.cluster,
            slot.category,
            _file(index),
            prompt,
            counted,
            token_hash(tokens),
            states,
            slot.language,
            logprobs,
        )

    def _check(self, slot: Slot, captured: CapturedText) -> None:
        about = self.about
        tokens_N, states_TAW = captured.tokens_N, captured.states_TAW
        length = captured.prompt + captured.counted + about.depth
        shape = (length - 1, len(about.boundaries), about.hidden)
        fault = ""
        if captured.prompt < 1 or not 1 <= captured.counted <= about.max_tokens:
            fault = (
                f"{captured.prompt} prompt tokens and {captured.counted} counted ones, 1 to {about.max_tokens} may be"
            )
        elif tuple(tokens_N.shape) != (length,) or tokens_N.dtype != torch.int64:
            fault = f"{list(tokens_N.shape)} tokens of {tokens_N.dtype}, {length} of int64 belong there"
        elif int(tokens_N.min()) < 0 or int(tokens_N.max()) >= about.vocab:
            fault = f"token ids outside the vocabulary of {about.vocab}"
        elif tuple(states_TAW.shape) != shape or states_TAW.dtype != getattr(torch, about.dtype):
            fault = f"{states_TAW.dtype} states {list(states_TAW.shape)}, {about.dtype} {list(shape)} belong there"
        elif not all(bool(block_TAW.isfinite().all()) for block_TAW in state_blocks(states_TAW)):
            fault = "states that are not finite"
        elif (captured.logprobs_N is not None) != (about.sampling is not None):
            fault = "log-probabilities for greedy text" if captured.logprobs_N is not None else "no log-probabilities"
        elif captured.logprobs_N is not None and not _are_logprobs(captured.logprobs_N, length - captured.prompt):
            fault = "log-probabilities that are none, or not one for each token of the text"
        if fault:
            raise Void(
                f"request {show(slot.id)}: the target gave {fault}",
                why="such a trace measures nothing",
                cure="a wider --dtype helps where numbers overflowed; else the engine or the model is at fault",
            )

    def _publish(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """A file that is there whole or not at all. One fixed temporary name: the next run overwrites it."""
        unfinished = path.with_name(f".{path.name}.new")
        try:
            with unfinished.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
            sync_directory(path.parent)
        except OSError as error:
            raise write_failed(error, self.out) from error


def refuse_occupied(out: Path) -> None:
    """Refuse an output that holds a complete trace, or anything that is not an incomplete one.

    Raises:
        WriteError: it may not be written to.
    """
    name = show(out.absolute().name)
    refuse_long_name(out)
    if not occupied(out):
        return
    if (out / INDEX).exists():
        raise WriteError(
            f"{name} holds a complete trace",
            why="it is never overwritten",
            cure="choose another output name, or remove the directory yourself",
        )
    if not (out / PARTIAL).is_file() and any(path.name != f".{PARTIAL}.new" for path in out.iterdir()):
        raise WriteError(f"{name} exists and holds no incomplete trace", cure="choose another output name")


def _locked(out: Path) -> int:
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise WriteError(
            f"another run is writing {show(out.name)} right now", cure="wait for it, or choose another output"
        ) from error
    return descriptor


def _same_settings(begun: Mapping[str, object], settings: Mapping[str, object], out: Path) -> None:
    for key in sorted({*begun, *settings}):
        was, now = begun.get(key), settings.get(key)
        if was == now:
            continue
        difference = "lists other requests" if key == "requests" else f"has {key} {show(was)}, this command {show(now)}"
        raise UsageError(
            f"{show(out.name)} holds an incomplete trace that {difference}",
            why="one trace is made with one set of prompts and settings",
            cure="give the command that began it, or choose another output name",
        )


def write_failed(error: OSError, out: Path) -> WriteError:
    """What the file system refused; unlike elsewhere, what was captured so far is kept."""
    refusal = write_error(error, out)
    if (out / INDEX).exists():
        why = "it stands there complete, but might not outlast a power cut"
        return WriteError(refusal.what, why=why, cure=refusal.cure)
    why = "what was captured so far is kept" if error.errno != errno.EROFS else ""
    cure = "raise the limit (`ulimit -f`)" if error.errno == errno.EFBIG else refusal.cure  # requests are not sharded
    return WriteError(refusal.what, why=why, cure=f"{cure}; the same command then goes on")


def _header(about: TraceInfo) -> dict[str, object]:
    return {"format": FORMAT, "version": VERSION, **about_json(about)}


def _digest_of(blocks: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(raw(block))
    return digest.hexdigest()


def _drawn_digest(captured: CapturedText) -> str:
    """Of its log-probabilities; empty for greedy text."""
    return "" if captured.logprobs_N is None else _digest_of([captured.logprobs_N])


def _are_logprobs(logprobs_N: Tensor, length: int) -> bool:
    shaped = tuple(logprobs_N.shape) == (length,) and logprobs_N.dtype == torch.float32
    return shaped and bool((logprobs_N.isfinite() & (logprobs_N <= 0)).all())


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=True).encode() + b"\n"


def _file(index: int) -> str:
    return f"{index:06}.safetensors"
