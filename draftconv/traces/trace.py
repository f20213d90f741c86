"""What a target did on a prompt set: token ids and the residual stream at some boundaries.

    DIR/trace.json                      target, boundaries, sampling, prompts, tables, requests
    DIR/requests/000000.safetensors …   one request each
    DIR/tables/embed_tokens.safetensors, lm_head.safetensors
    DIR/tokenizer.json                  to show text in reports, when the target has one

A request holds `token_ids` I64 [n + 1], `prompt_len` I64 [1], `hidden_states` [n, A, W] in
the target's dtype and, of sampled text, `logprobs` F32 [n + 1 - prompt], log p of every written
token. Row t is the residual stream at position t, one column per boundary in ascending order; the
last token never entered the target and has no row. Beyond the counted end `depth` more tokens are
kept, so that the last counted step is not clipped: n + 1 = prompt + counted + depth.

While a trace is being made there is `trace.partial.json` in place of `trace.json`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from draftconv import limits
from draftconv.checkpoint import TensorRef, show, show_some
from draftconv.checkpoint.files import LocalFile, exists
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.checkpoint.headers import SafetensorsHeader, read_header
from draftconv.checkpoint.local import LocalDirectory
from draftconv.checkpoint.text import is_plain_name, parse_object
from draftconv.display import Block, Displayed, card, named
from draftconv.drafter.config import Config
from draftconv.drafter.targets import FAMILY_NAMES, Family
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.reference.sampling import Sampling

if TYPE_CHECKING:
    from draftconv.traces.request import TraceRequest

logger = logging.getLogger(__name__)

FORMAT = "draftconv-trace"
VERSION = 1
INDEX, PARTIAL = "trace.json", "trace.partial.json"
REQUESTS, TABLES, TOKENIZER = "requests", "tables", "tokenizer.json"
TABLE_NAMES = ("embed_tokens", "lm_head")

DTYPES: Mapping[str, str] = MappingProxyType({"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16"})
"""What a target may compute in, and how safetensors spells it."""

BLOCK = 16 * 1024 * 1024
"""Bytes of a table that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One request as trace.json lists it.

    Attributes:
        id: unique in the trace. `cluster`: what is resampled as one, a prompt with all its turns.
        file: its name under requests/.
        prompt: prompt tokens P. `counted`: generated tokens that count, EOS included.
        tokens: SHA-256 of all its token ids as little-endian int64.
        states: SHA-256 of the bytes of its hidden states.
        language: of the prompt; empty where nobody said.
        logprobs: SHA-256 of the bytes of its log-probabilities; empty for greedy text.
    """

    id: str
    cluster: str
    category: str
    file: str
    prompt: int
    counted: int
    tokens: str
    states: str
    language: str = ""
    logprobs: str = ""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """One of the target's tables: where it lies, and what it must hash to.

    Attributes:
        file: relative to the trace, or the path that `--link-tables` recorded.
        tensor: its name in that file. `sha256`: of the tensor's bytes.
    """

    file: str
    tensor: str
    sha256: str
    linked: bool = False


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """What trace.json says besides its requests.

    Attributes:
        boundaries: ascending, 0…L. `depth`: tokens kept beyond the counted end.
        prompts: the suite with its data set and commit, or the file. `prompts_sha256`: see
            `chat_template.prompts_hash`.
        dtype: what the target computed in. `made_by`: program and version.
        chat: whether the target's chat template was applied.
        eos: the tokens that end the counted text; none when every text has full length.
        family: how engines number the target's layers, which the ids of some drafters depend on.
        drafters: how the drafters were read whose boundaries are kept, a line for each and for each doubt.
        sampling: how the text was drawn; None where it is greedy.
    """

    target: str
    revision: str | None
    layers: int
    hidden: int
    vocab: int
    boundaries: tuple[int, ...]
    depth: int
    max_tokens: int
    dtype: str
    made_by: str
    prompts: str
    prompts_sha256: str
    chat: bool
    eos: tuple[int, ...] = ()
    family: Family | None = None
    drafters: tuple[str, ...] = ()
    sampling: Sampling | None = None


HASHED = ("layers", "hidden", "vocab", "boundaries", "depth", "max_tokens", "dtype", "chat", "eos", "family")
"""What trace.json says that decides what a replay computes: which column is which layer, what is counted."""


def digest(about: TraceInfo, tables: Mapping[str, TargetTable], entries: Iterable[TraceEntry]) -> str:
    """SHA-256, in hex, of all that a replay of some requests reads, in their order.

    What the target and the prompts are called, where the trace lies and what made it are no part of it.
    """
    whole = {
        "about": {name: getattr(about, name) for name in HASHED},
        "tables": {name: table.sha256 for name, table in tables.items()},
        "requests": [
            (*_labels(e), e.prompt, e.counted, e.tokens, e.states, *filter(None, [e.logprobs])) for e in entries
        ],
    }
    if about.sampling is not None:
        whole["sampling"] = asdict(about.sampling)
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


LATER = ("language", "logprobs")
"""What a request lists only where it has it, so that traces without keep their bytes."""


def about_json(about: TraceInfo) -> dict[str, object]:
    """What trace.json says besides its requests; of greedy text nothing about sampling."""
    return {name: value for name, value in asdict(about).items() if value is not None or name != "sampling"}


def request_json(request: Any) -> dict[str, object]:
    """A request as trace.json lists it.

    Args:
        request: an entry, or what is known of it before it is made.
    """
    return {name: value for name, value in asdict(request).items() if value or name not in LATER}


def _labels(entry: TraceEntry) -> tuple[str, ...]:
    """What a request is called, and what it is counted under."""
    return (entry.id, entry.cluster, entry.category, *filter(None, [entry.language]))


@dataclass(frozen=True, slots=True, repr=False)
class Trace(Displayed):
    """An opened, complete trace; nothing but trace.json has been read.

    Attributes:
        requests: the directory that `entries` name files of.
    """

    directory: Path
    about: TraceInfo
    entries: Sequence[TraceEntry]
    tables: Mapping[str, TargetTable]
    tokenizer: Path | None
    requests: LocalDirectory

    @property
    def digest(self) -> str:
        """What it holds, wherever it lies; see `digest`."""
        return digest(self.about, self.tables, self.entries)

    def brief(self) -> Iterator[str]:
        """Its name, the target, how much was captured, and at which boundaries."""
        yield f"{named(self.directory.name)} of {named(self.about.target)}"
        yield f"{len(self.entries)} requests"
        yield f"{sum(entry.counted for entry in self.entries)} tokens"
        yield f"boundaries {', '.join(map(str, self.about.boundaries))}"

    def blocks(self) -> Iterator[Block]:
        """A card."""
        about, entries = self.about, self.entries
        counted, prompts = sum(e.counted for e in entries), sum(e.prompt for e in entries)
        ended = sum(entry.counted < about.max_tokens for entry in entries)
        revision = f" at {about.revision}" if about.revision else ""
        yield card(
            "Trace",
            (
                ("target", f"{about.target}{revision}, {about.dtype}"),
                ("prompts", f"{about.prompts}, {'chat template' if about.chat else 'as they are'}"),
                ("text", "greedy" if about.sampling is None else str(about.sampling)),
                ("requests", f"{len(entries)} from {len({e.cluster for e in entries})} prompts"),
                ("tokens", f"{prompts} of prompts, {counted} counted, {about.depth} more per request"),
                ("ended early", f"{ended} of {len(entries)} texts"),
                ("boundaries", ", ".join(map(str, about.boundaries))),
                ("tables", ", ".join(f"{n}{' (linked)' * t.linked}" for n, t in self.tables.items())),
            ),
        )

    def read(self, entry: TraceEntry, boundaries: Sequence[int]) -> TraceRequest:
        """One request, with the columns of these boundaries in this order, every byte checked.

        States beyond 16 MiB stay in the file, and are read again where rows of them are asked for.

        Raises:
            BadCheckpoint: the file is missing, short, or not the one that trace.json was written for.
            UsageError: the trace lacks one of the boundaries.
        """
        import torch

        from draftconv.traces.request import TraceRequest
        from draftconv.traces.states import open_states

        columns = self.columns(boundaries)
        request = open_request(self.requests, entry.file, self.about)
        tokens = request.tokens()
        if request.prompt != entry.prompt or len(tokens) != entry.prompt + entry.counted + self.about.depth:
            raise _altered(
                f"{entry.file} holds {request.prompt} prompt tokens of {len(tokens)}; {INDEX} says "
                f"{entry.prompt} + {entry.counted} counted + {self.about.depth} more"
            )
        if token_hash(tokens) != entry.tokens:
            raise _altered(f"{entry.file} does not hold the tokens that {INDEX} was written for")
        if max(tokens) >= self.about.vocab or min(tokens) < 0:
            raise _altered(f"{entry.file} holds token ids outside the vocabulary of {self.about.vocab}")
        states_TAW, found = open_states(request.states, columns)
        if found != entry.states:
            raise _altered(f"{entry.file} does not hold the hidden states that {INDEX} was written for")
        logprobs_N = None
        if request.logprobs is not None:
            data = bytearray(request.logprobs.nbytes)
            request.logprobs.file.readinto(request.logprobs.offset, memoryview(data))
            if hashlib.sha256(data).hexdigest() != entry.logprobs:
                raise _altered(f"{entry.file} does not hold the log-probabilities that {INDEX} was written for")
            logprobs_N = torch.frombuffer(data, dtype=torch.float32)
            if not bool((logprobs_N <= 0).all()) or not bool(logprobs_N.isfinite().all()):
                raise _altered(f"{entry.file} holds log-probabilities that are none")
        return TraceRequest(
            id=entry.id,
            cluster=entry.cluster,
            category=entry.category,
            prompt=entry.prompt,
            counted=entry.counted,
            tokens_N=torch.tensor(tokens),
            states_TAW=states_TAW,
            language=entry.language,
            logprobs_N=logprobs_N,
        )

    def tokens(self, entry: TraceEntry) -> tuple[int, ...]:
        """All token ids of a request, without its states.

        Raises:
            BadCheckpoint: the file is missing, short, or does not hold the tokens that trace.json was written for.
        """
        found = open_request(self.requests, entry.file, self.about).tokens()
        if token_hash(found) != entry.tokens:
            raise _altered(f"{entry.file} does not hold the tokens that {INDEX} was written for")
        return tuple(found)

    def columns(self, boundaries: Sequence[int]) -> list[int]:
        """Where these boundaries stand in the file.

        Raises:
            UsageError: the trace lacks one of them.
        """
        stored = self.about.boundaries
        if missing := [b for b in boundaries if b not in stored]:
            needed = ",".join(map(str, sorted({*stored, *boundaries})))
            raise UsageError(
                f"the trace {show(self.directory.name)} holds boundaries {_listing(stored)}, not {_listing(missing)}",
                why="a drafter is replayed on the very states that it was trained on",
                cure=f"make another trace with `draftconv trace --boundaries {needed}`",
            )
        return [stored.index(b) for b in boundaries]

    def table(self, name: str) -> TensorRef | None:
        """The target's `embed_tokens` or `lm_head`, checked against its hash; None when the trace holds none.

        Raises:
            BadCheckpoint: its file is missing, or is not the one that was recorded.
        """
        table = self.tables.get(name)
        if table is None:
            return None
        cure = "put the file back, or make the trace without --link-tables" if table.linked else _AGAIN
        try:
            file = (
                LocalFile(Path(table.file))
                if table.linked
                else LocalDirectory(self.directory / TABLES).open(f"{name}.safetensors")
            )
            ref = read_header(file).tensors.get(table.tensor)
        except BadCheckpoint as error:
            raise BadCheckpoint(
                f"the target's {name} cannot be had: {error.what}",
                why="drafters that ship none are replayed with it",
                cure=cure,
            ) from error
        if ref is None:
            raise BadCheckpoint(f"{show(file.name)} holds no tensor {show(table.tensor)}", cure=cure)
        about = self.about
        if len(ref.shape) != 2 or ref.shape[0] < about.vocab or ref.shape[1] != about.hidden:
            raise BadCheckpoint(
                f"{show(file.name)}: {show(ref.name)} is {list(ref.shape)}, the target has {about.vocab} tokens "
                f"of width {about.hidden}",
                cure=cure,
            )
        if tensor_hash(ref) != table.sha256:
            raise BadCheckpoint(
                f"{show(file.name)}: {show(ref.name)} is not the {name} that the trace was made with",
                why="drafters would be replayed with the table of another target",
                cure=cure,
            )
        return ref


@dataclass(frozen=True, slots=True)
class RequestFile:
    """An opened request: header checked, states not yet read."""

    name: str
    prompt: int
    ids: TensorRef
    states: TensorRef
    metadata: Mapping[str, str]
    logprobs: TensorRef | None = None

    def tokens(self) -> list[int]:
        """All token ids: [n + 1]."""
        return list(struct.unpack(f"<{self.ids.shape[0]}q", self.ids.read()))


def open_trace(directory: str | Path) -> Trace:
    """Read and check trace.json, and that every file it names is there.

    Raises:
        BadCheckpoint: it is no trace, an incomplete one, one of a later draftconv, or contradicts itself.
    """
    directory = Path(directory)
    if not exists(directory):
        raise BadCheckpoint(f"the trace {show(directory)} does not exist", cure="make one with `draftconv trace`")
    listing = LocalDirectory(directory)
    if INDEX not in listing.files:
        raise _no_trace(listing)
    document = read_document(listing, INDEX)
    about = read_about(document)
    entries = _entries(document, about)
    requests = LocalDirectory(directory / REQUESTS)
    if missing := [entry.file for entry in entries if entry.file not in requests.files]:
        raise BadCheckpoint(
            f"the trace {show(listing.name)} lacks {show_some(missing)}",
            why="it was not copied whole",
            cure="copy it again, or make it again with `draftconv trace`",
        )
    tables = document.section("tables")
    logger.info("opened %s: a trace of %s, %d requests", show(directory), show(about.target), len(entries))
    return Trace(
        directory=directory,
        about=about,
        entries=entries,
        tables=MappingProxyType({name: _table(name, tables) for name in tables.data}),
        tokenizer=directory / TOKENIZER if TOKENIZER in listing.files else None,
        requests=requests,
    )


def read_document(listing: LocalDirectory, name: str) -> Config:
    """trace.json or trace.partial.json of this format and version.

    Raises:
        BadCheckpoint: another format, or a later version of it.
    """
    file = listing.open(name)
    limits.TRACE.check(file.size, f"{name} has {file.size} bytes")
    document = Config(parse_object(file.read(0, file.size), name, constants=False), name)
    if document.text("format") != FORMAT:
        raise BadCheckpoint(f"{name} in {show(listing.name)} is not of the format {FORMAT}", cure=_AGAIN)
    if document.integer("version") != VERSION:
        raise BadCheckpoint(
            f"{name} in {show(listing.name)} has version {show(document.raw('version'))}, {VERSION} is read here",
            why="what its files mean may have changed",
            cure="update draftconv, or make the trace again",
        )
    return document


def read_about(document: Config) -> TraceInfo:
    """The part of trace.json that is not about single requests, checked.

    Raises:
        BadCheckpoint: a key is missing, of the wrong kind, or impossible.
    """
    where = document.where
    about = TraceInfo(
        target=_text(document, "target"),
        revision=document.text("revision"),
        layers=document.required("layers", limits.TARGET_LAYERS),
        hidden=document.required("hidden"),
        vocab=document.required("vocab"),
        boundaries=document.integers("boundaries") or (),
        depth=document.required("depth"),
        max_tokens=document.required("max_tokens"),
        dtype=_text(document, "dtype"),
        made_by=_text(document, "made_by"),
        prompts=_text(document, "prompts"),
        prompts_sha256=_digest(document, "prompts_sha256"),
        chat=bool(document.flag("chat")),
        eos=document.integers("eos") or (),
        family=_family(document),
        drafters=document.texts("drafters"),
        sampling=_sampling(document),
    )
    if about.dtype not in DTYPES:
        raise BadCheckpoint(f"{where}: dtype {show(about.dtype)} is none of {', '.join(DTYPES)}", cure=_AGAIN)
    boundaries = about.boundaries
    if (
        not boundaries
        or list(boundaries) != sorted(set(boundaries))
        or boundaries[0] < 0
        or boundaries[-1] > about.layers
    ):
        raise BadCheckpoint(
            f"{where}: boundaries {_listing(boundaries)} are not ascending numbers from 0 to {about.layers}",
            why="nobody could tell which column of the states belongs to which layer",
            cure=_AGAIN,
        )
    return about


def open_request(requests: LocalDirectory, name: str, about: TraceInfo) -> RequestFile:
    """Open one request and check its header against what the trace says of all.

    Raises:
        BadCheckpoint: a tensor is missing, superfluous, or of another shape or dtype.
    """
    header: SafetensorsHeader = read_header(requests.open(name))
    tensors = header.tensors
    if set(tensors) != {"token_ids", "prompt_len", "hidden_states"} | ({"logprobs"} if about.sampling else set()):
        raise _altered(f"{name} holds {show_some(sorted(tensors)) or 'nothing'}")
    ids, length, states = (tensors[key] for key in ("token_ids", "prompt_len", "hidden_states"))
    if (ids.dtype, length.dtype, length.shape, len(ids.shape)) != ("I64", "I64", (1,), 1):
        raise _altered(f"{name}: token_ids or prompt_len is not a list of I64")
    (prompt,) = struct.unpack("<q", length.read())
    rows = ids.shape[0] - 1
    shape = (rows, len(about.boundaries), about.hidden)
    if (states.dtype, states.shape) != (DTYPES[about.dtype], shape):
        raise _altered(
            f"{name}: hidden_states is {states.dtype} {list(states.shape)}; {rows + 1} tokens, {shape[1]} boundaries "
            f"and width {shape[2]} make {DTYPES[about.dtype]} {list(shape)}"
        )
    if not 0 < prompt < rows + 1 - about.depth:
        raise _altered(f"{name} has {prompt} prompt tokens of {rows + 1} in all, {about.depth} of them uncounted")
    logprobs = tensors.get("logprobs")
    if logprobs is not None and (logprobs.dtype, logprobs.shape) != ("F32", (rows + 1 - prompt,)):
        raise _altered(f"{name}: logprobs is {logprobs.dtype} {list(logprobs.shape)} for {rows + 1 - prompt} tokens")
    return RequestFile(name, prompt, ids, states, header.metadata, logprobs)


def token_hash(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids as little-endian int64."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}q", *tokens)).hexdigest()


_AGAIN = "make it again with `draftconv trace`"


def _no_trace(listing: LocalDirectory) -> BadCheckpoint:
    if PARTIAL in listing.files:
        return BadCheckpoint(
            f"the trace {show(listing.name)} is incomplete",
            why="the run that made it was stopped",
            cure="finish it: give the `draftconv trace` command that began it once more",
        )
    return BadCheckpoint(
        f"{show(listing.name)} is no trace: it has no {INDEX}",
        why=f"it holds {show_some(listing.files, 6) or 'nothing'}",
        cure="make one with `draftconv trace`",
    )


def _entries(document: Config, about: TraceInfo) -> tuple[TraceEntry, ...]:
    rows = document.raw("requests")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise BadCheckpoint(f"{document.where} lists no requests", cure=_AGAIN)
    entries = tuple(_entry(Config(row, f"{document.where}: requests[{i}]"), about) for i, row in enumerate(rows))
    for what in ("id", "file"):
        names = [getattr(entry, what) for entry in entries]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadCheckpoint(f"{document.where} lists the {what} {show(twice)} twice", cure=_AGAIN)
    return entries


def _entry(row: Config, about: TraceInfo) -> TraceEntry:
    file = _text(row, "file")
    if not is_plain_name(file) or not file.endswith(".safetensors"):
        raise BadCheckpoint(
            f"{row.where}: {show(file)} is not the name of a file in {REQUESTS}",
            why="a trace from a stranger could point at any file of yours",
            cure=_AGAIN,
        )
    entry = TraceEntry(
        id=_text(row, "id"),
        cluster=_text(row, "cluster"),
        category=_text(row, "category"),
        file=file,
        prompt=row.required("prompt"),
        counted=row.required("counted"),
        tokens=_digest(row, "tokens"),
        states=_digest(row, "states"),
        language=row.text("language") or "",
        logprobs=_digest(row, "logprobs") if about.sampling else "",
    )
    if entry.counted > about.max_tokens:
        raise BadCheckpoint(f"{row.where}: {entry.counted} counted tokens, {about.max_tokens} at most", cure=_AGAIN)
    return entry


def _table(name: str, tables: Config) -> TargetTable:
    if name not in TABLE_NAMES:
        raise BadCheckpoint(f"{tables.where}: {show(name)} is none of {', '.join(TABLE_NAMES)}", cure=_AGAIN)
    row = tables.section(name)
    table = TargetTable(_text(row, "file"), _text(row, "tensor"), _digest(row, "sha256"), bool(row.flag("linked")))
    if table.file != f"{TABLES}/{name}.safetensors" if not table.linked else not Path(table.file).is_absolute():
        raise BadCheckpoint(
            f"{row.where}: {show(table.file)} is neither {TABLES}/{name}.safetensors nor a linked absolute path",
            cure=_AGAIN,
        )
    return table


def _sampling(document: Config) -> Sampling | None:
    if document.raw("sampling") is None:
        return None
    section = document.section("sampling")
    try:
        return Sampling(
            temperature=section.number("temperature") or 0.0,
            top_p=section.number("top_p") or 0.0,
            top_k=section.integer("top_k") or 0,
            min_p=section.number("min_p") or 0.0,
            seed=section.integer("seed") or 0,
        )
    except UsageError as error:
        raise BadCheckpoint(f"{section.where}: {error.what}", cure=_AGAIN) from error


def _family(document: Config) -> Family | None:
    name = document.text("family")
    if name is None:
        return None
    for family in FAMILY_NAMES:
        if name == family:
            return family
    raise BadCheckpoint(f"{document.where}: family {show(name)} is none of {', '.join(FAMILY_NAMES)}", cure=_AGAIN)


def _text(config: Config, key: str) -> str:
    value = config.text(key)
    if value is None:
        raise BadCheckpoint(f"{config.where} has no {key}", cure=_AGAIN)
    return value


def _digest(config: Config, key: str) -> str:
    value = _text(config, key)
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise BadCheckpoint(f"{config.where}: {key} is not a SHA-256 in hex", cure=_AGAIN)
    return value


def _altered(what: str) -> BadCheckpoint:
    return BadCheckpoint(
        what,
        why="states and tokens that do not belong together measure nothing",
        cure="copy the trace again, or make it again with `draftconv trace`",
    )


def _listing(boundaries: Sequence[int]) -> str:
    return ",".join(map(str, boundaries)) or "none"
