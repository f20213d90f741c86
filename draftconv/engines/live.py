"""What a measurement on a running engine must know of it: how it is asked, what it is started with, what it says.

Everything but the client may be left out, and is then said not to be there. Clients are imported when one is asked
for: `inspect` and `convert` know the engines too, and speak to none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.reference.sampling import Sampling

if TYPE_CHECKING:
    from draftconv.engines.client import Client, RequestSettings
    from draftconv.reference.accept_length import Counts


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log that names a choice.

    Attributes:
        pattern: its groups are what was chosen, and for which scheme where it says so.
        source: the file that writes it, and how that is known.
    """

    what: str
    pattern: str
    source: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that measures.

    Attributes:
        title: as a person calls it. `package`: that it comes with. `install`: for pip.
        source: where its arguments and its JSON are known from.
    """

    title: str
    package: str
    install: str
    source: str


@dataclass(frozen=True, slots=True)
class Load:
    """What a server is asked.

    Attributes:
        model: as the server was given it, which is also where the tokenizer is.
        tokens_in, tokens_out: of every request. `remote_code`: of the tokenizer.
    """

    model: str
    tokens_in: int = 1024
    tokens_out: int = 1024
    remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of a server's speed.

    Attributes:
        requests: in all, `concurrency` of them at a time.
        result: the JSON file to write. `hardware`: as in `EngineSpec`.
    """

    load: Load
    url: str
    concurrency: int
    requests: int
    result: Path
    hardware: str | None = None

    @property
    def server_options(self) -> tuple[str, ...]:
        """Server and requests, under the names that load generators have from one ancestor, as the next two."""
        return (
            *("--base-url", self.url, "--model", self.load.model, "--num-prompts", str(self.requests)),
            *("--max-concurrency", str(self.concurrency), "--seed", "0", "--disable-tqdm"),
        )

    @property
    def lengths(self) -> tuple[str, ...]:
        """Tokens of prompt and text."""
        return (
            *("--random-input-len", str(self.load.tokens_in)),
            *("--random-output-len", str(self.load.tokens_out)),
        )

    @property
    def saved(self) -> tuple[str, ...]:
        """Where the result goes, for texts of one length."""
        return (
            *("--save-result", "--result-dir", str(self.result.parent), "--result-filename", self.result.name),
            "--ignore-eos",
            *["--trust-remote-code"] * self.load.remote_code,
        )


@dataclass(frozen=True, slots=True)
class Generator:
    """The load generator that comes with an engine.

    Attributes:
        command: what measures one round and writes its result: prompts are random token ids of one length, ends are
            ignored, as for published tables; text is greedy.
        accept_length: where the result has the accept length of that round; empty where it has none.
    """

    tool: Tool
    command: Callable[[Round], tuple[str, ...]]
    accept_length: str = ""


@dataclass(frozen=True, slots=True)
class Offline:
    """An engine without a server: a program that its Python runs, asked over its pipes, a line each way.

    Attributes:
        worker: the program. Its first line is {"version": "…", "room": tokens that prompt and text may have}; each
            request {"prompt": [ids], "length": n, "ignore_eos": b, "sampling": {"temperature": t, "top_p": p, "top_k":
            n, "seed": n}, null or nothing for greedy text} gets {"tokens": [ids], "histogram": [steps by accepted
            tokens], "steps": n, "accepted": n, "depth": K} or {"fault": "…"}.
        arguments: the program's, from the command of a server, and whether every text is written to its full length.
        counting: as in `ServerInfo`. `version`: of an engine that is known to answer so.
    """

    worker: Path
    arguments: Callable[[Sequence[str], bool], tuple[str, ...]]
    counting: str
    version: str


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting with which an engine makes acceptance up, or accepts by another rule than speculative sampling's.

    Attributes:
        pattern: of the command's arguments with spaces between, or of a settings file. What it finds is named.
        says: what the engine does then, as a sentence.
        source: the file that reads it, and the version.
    """

    pattern: str
    says: str
    source: str


def as_asked(_: Sampling, __: str | None, ___: Sequence[str]) -> None:
    """What `Live.refuse_sampling` is where an engine draws every text as it is asked."""


@dataclass(frozen=True, slots=True)
class ServerTold:
    """What a server says of itself where no text is asked of it.

    Attributes:
        target: what it was given as its model. `drafter`: likewise, where it tells.
        wrong: how it drafts otherwise than an EAGLE-3 drafter wants, in words; empty where nothing tells of that.
        drafted: tokens per step, room: tokens that prompt and text may have together; None where it does not tell.
        counts: verify steps since it was started, whoever asked; None where it does not tell.
    """

    target: str
    version: str
    drafter: str = ""
    wrong: str = ""
    drafted: int | None = None
    room: int | None = None
    counts: Counts | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Live:
    """An engine that counts what it accepts.

    Attributes:
        connect: a client for a server, from its address and the option it came from; raises UsageError when the
            engine cannot be asked so.
        look: what a server tells without being asked for a text, from the same two.
        health: what a server answers with status 200 once it is ready.
        counting: server arguments that parity adds: counts per request. Only a server that drafts takes them.
        measuring: those of every server: no reuse of earlier prompts.
        settings: the same, for the settings file that the server reads.
        proven: on which engine this client was run; empty: on stub servers only.
        side_by_side: how to start a server whose requests are counted one by one, where others tell totals only.
        lines: of its log, that tell which kernels it chose.
        packages: whose versions say which kernels it has; torch's tells CUDA or ROCm (`2.14.0+rocm7.0`).
        variables: environment variables that make acceptance up, off when zero or below, and who reads them.
        switches: the same of arguments and settings, and of those that accept what the target would not write.
        refuse_sampling: raises UsageError for texts that it would draw otherwise than asked, on this hardware and
            with these arguments of its server.
    """

    connect: Callable[[str, str, RequestSettings], Client]
    look: Callable[[str, str], ServerTold] | None = None
    health: str = "/health"
    counting: tuple[str, ...] = ()
    measuring: tuple[str, ...] = ()
    settings: str = ""
    proven: str = ""
    side_by_side: str = ""
    lines: tuple[LogLine, ...] = ()
    packages: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    switches: tuple[Switch, ...] = ()
    refuse_sampling: Callable[[Sampling, str | None, Sequence[str]], None] = as_asked
    generator: Generator | None = None
    offline: Offline | None = None
