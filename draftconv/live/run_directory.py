"""What a live run has so far, so that a stopped one goes on and servers can be swapped in between.

    DIR/run.json               target, engine, prompts, lengths: the same for all arms
    DIR/arms/0/arm.json        drafter and engine of an arm; 0 is the reference
    DIR/arms/0/server.json     which server answered last, so that one that was not swapped is noticed
    DIR/arms/0/answers.jsonl   one line per finished request: ids of its text, histogram
    DIR/arms/0/server.log      of the server, where draftconv started it
    DIR/arms/0/speed-4.json    what a load generator measured of it; accuracy/: what lm_eval did
    DIR/arms/alone/            the same of the target without a drafter

A line is written and synced when its request is done. One that was cut short is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from draftconv import limits
from draftconv.checkpoint import show
from draftconv.checkpoint.directories import parents_made
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.staging import refuse_long_name, write_error
from draftconv.checkpoint.text import parse_object
from draftconv.drafter.config import Config
from draftconv.engines.request_output import RequestOutput
from draftconv.errors import BadCheckpoint, BadReport, UsageError, WriteError
from draftconv.live.requests import LiveRequest
from draftconv.reference.accept_length import Counts
from draftconv.reference.sampling import Sampling
from draftconv.traces.trace import token_hash

FORMAT, VERSION = "draftconv-live-run", 1
RUN, ARMS, ARM, SERVER, ANSWERS = "run.json", "arms", "arm.json", "server.json", "answers.jsonl"
ALONE = "alone"
_ANOTHER = "repeat the options of the run, or choose another directory"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What every arm of a run shares.

    Attributes:
        target: name with revision. `engine`: its name. `way`: server, launched or offline.
        prompts: where they came from. `prompts_sha256`: of them as they were rendered.
        depth: K. `length`: generated tokens at most. `ignore_eos`: always so many.
        concurrency: requests at a time. `arguments`: that an engine was started with beside the usual ones.
        machine: what draftconv saw of it, where it started the engine.
        sampling: how texts are drawn; None for greedy ones.
    """

    target: str
    engine: str
    way: str
    prompts: str
    prompts_sha256: str
    depth: int
    length: int
    ignore_eos: bool
    concurrency: int = 1
    arguments: tuple[str, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    sampling: Sampling | None = None

    def json(self) -> dict[str, object]:
        """As run.json holds them: of greedy texts nothing about sampling."""
        about = {name: value for name, value in asdict(self).items() if value is not None}
        return {"format": FORMAT, "version": VERSION, **about, "arguments": [*self.arguments]}


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """What answers of one arm have in common: drafter (content hash) and what the engine says of itself."""

    content: str
    served: str
    version: str
    counting: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ArmDirectory:
    """One arm on disk."""

    directory: Path
    depth: int
    answers: dict[str, tuple[str, RequestOutput]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        path = self.directory / ANSWERS
        if not path.exists():
            return
        data = _read(path, limits.ANSWERS)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # a kill in the middle of a line
            os.truncate(path, whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            id, prompt, answer = _line(line, f"{ANSWERS}, line {number}", self.depth)
            self.answers[id] = prompt, answer

    def get(self, ask: LiveRequest) -> RequestOutput | None:
        """The answer to a request; None when it has none yet.

        Raises:
            UsageError: it was asked with another prompt.
        """
        if ask.id not in self.answers:
            return None
        prompt, answer = self.answers[ask.id]
        if prompt != token_hash(ask.tokens):
            raise UsageError(
                f"request {show(ask.id)} was asked with other tokens before",
                why="arms would be compared on different prompts",
                cure=_ANOTHER,
            )
        return answer

    def keep(self, ask: LiveRequest, answer: RequestOutput) -> None:
        """Write an answer down.

        Raises:
            WriteError: the file system refuses.
        """
        prompt = token_hash(ask.tokens)
        line = {"id": ask.id, "prompt": prompt, "tokens": answer.tokens, "histogram": answer.counts.histogram}
        _append(self.directory / ANSWERS, line)
        self.answers[ask.id] = prompt, answer

    def agree(self, terms: ArmSettings) -> None:
        """Begin the arm, or go on with it on the same engine.

        Raises:
            UsageError: it was begun with another drafter or engine. WriteError: the file system refuses.
        """
        _agree(self.directory / ARM, asdict(terms))

    def seen(self, born: str, drafter: str, *, finished: bool = False) -> None:
        """Remember which server answered last, and whether the arm is finished.

        Raises:
            WriteError: the file system refuses.
        """
        _write(self.directory / SERVER, {"born": born, "drafter": drafter, "finished": finished})

    @property
    def last_seen(self) -> tuple[str, str]:
        """Birth and drafter of the server that answered last; empty where it did not tell, or none has.

        Raises:
            BadReport: the file was changed.
        """
        server = self._server()
        return server.text("born") or "", server.text("drafter") or ""

    @property
    def finished(self) -> bool:
        """Whether every request was answered, or failed as the few that a run survives.

        Raises:
            BadReport: the file was changed.
        """
        return self._server().flag("finished") is True

    def _server(self) -> Config:
        path = self.directory / SERVER
        return Config(_document(path) if path.exists() else {}, SERVER)

    def terms(self) -> ArmSettings | None:
        """What the arm was begun with; None when it has not been.

        Raises:
            BadReport: the file was changed.
        """
        if not (self.directory / ARM).exists():
            return None
        document = Config(_document(self.directory / ARM), ARM)
        settings = {name: str(value) for name, value in document.section("settings").data.items()}
        content, served, version, counting = (
            document.text(name) or "" for name in ("content", "served", "version", "counting")
        )
        return ArmSettings(content, served, version, counting, settings)


class RunDirectory:
    """The directory of a run. As a context manager it holds it against other runs.

    Raises:
        UsageError: it holds something else, or was begun with other options. WriteError: it cannot be written.
    """

    def __init__(self, directory: Path, terms: RunSettings) -> None:
        self.directory, self.terms = directory, terms
        self._lock = -1

    def __enter__(self) -> Self:
        refuse_long_name(self.directory)
        try:
            with parents_made(self.directory / RUN):
                self._lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise write_error(error, self.directory) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (self.directory / RUN).exists() and any(self.directory.iterdir()):
                raise UsageError(
                    f"{show(self.directory.name)} holds something else than a run", cure="choose another directory"
                )
            _agree(self.directory / RUN, self.terms.json())
        except BlockingIOError as error:
            os.close(self._lock)
            raise WriteError(
                f"another run is writing {show(self.directory.name)} right now",
                cure="wait for it, or choose another directory",
            ) from error
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    @property
    def alone(self) -> Path:
        """The directory of the target without a drafter."""
        return self.directory / ARMS / ALONE

    def arm(self, number: int) -> ArmDirectory:
        """An arm; 0 is the reference.

        Raises:
            BadReport: its answers were changed.
        """
        directory = self.directory / ARMS / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        return ArmDirectory(directory, self.terms.depth)


# ── files ──────────────────────────────────────────────────────────────────────────


def _agree(path: Path, document: Mapping[str, object]) -> None:
    """Write a document, or find the same one there."""
    if not path.exists():
        _write(path, document)
        return
    begun = _document(path)
    for key in sorted({*begun, *document}):
        if begun.get(key) != document.get(key):
            raise UsageError(
                f"{show(path.parent.name)} was begun with {key} {show(begun.get(key))}, not {show(document.get(key))}",
                why="answers of both would be mixed",
                cure=_ANOTHER,
            )


def _write(path: Path, document: Mapping[str, object]) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(json.dumps(document, indent=1, ensure_ascii=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise write_error(error, path) from error


def _append(path: Path, line: Mapping[str, object]) -> None:
    try:
        with path.open("ab") as file:
            file.write(json.dumps(line, ensure_ascii=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise write_error(error, path) from error


def _line(line: bytes, where: str, depth: int) -> tuple[str, str, RequestOutput]:
    try:
        row = Config(parse_object(line, where), where)
        id, prompt = row.text("id"), row.text("prompt")
        tokens, histogram = row.integers("tokens"), row.integers("histogram")
    except BadCheckpoint as error:
        raise _altered(error.what) from error
    if id is None or prompt is None or tokens is None or histogram is None or len(histogram) != depth + 1:
        raise _altered(f"{where} is no answer")
    return id, prompt, RequestOutput(tokens, Counts(histogram))


def _document(path: Path) -> Mapping[str, object]:
    try:
        return parse_object(_read(path, limits.RUN), path.name)
    except BadCheckpoint as error:
        raise _altered(error.what) from error


def _read(path: Path, limit: limits.Limit) -> bytes:
    try:
        with LocalFile(path) as file:
            limit.check(file.size, f"{path.name} has {file.size} bytes", error=BadReport)
            return file.read(0, file.size)
    except BadCheckpoint as error:
        raise _altered(error.what) from error


def _altered(what: str) -> BadReport:
    return BadReport(what, why="the run was edited, or another program wrote it", cure="choose another directory")
