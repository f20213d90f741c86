"""How arms are run and compared on an engine, and which options go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from draftconv.engines import EngineSpec
from draftconv.errors import UsageError, did_you_mean
from draftconv.layouts.readings import Said, said_of_each
from draftconv.live.accuracy import TASKS
from draftconv.live.collect import Patience
from draftconv.live.engine import generator_of, live_of, offline_of
from draftconv.report.verdict import Kind
from draftconv.traces.prompts import DEFAULT_SUITE

Way = Literal["two servers", "one server", "launch", "offline"]

Progress = Callable[[str, int, int], None]
"""Told the stage (`reading`, then each arm's name), and how much of it is done and in all: bytes, then requests."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How arms are run and compared.

    Attributes:
        engine: ENGINE[@VERSION][:HARDWARE]. `target`: a directory, a Hub id or a known name.
        run: directory that keeps what was answered; the same call goes on with it.
        url_ref, url_cand: running servers of the reference, and of every candidate in order.
        url: one running server, on which the drafters are swapped between calls.
        launch: start a server for each arm. `offline`: an engine without one.
        engine_python: of the environment that has the engine; None takes its programs from the PATH, and for
            `offline` this Python.
        server_args: further arguments for the engine. `tensor_parallel`: devices for the target.
        prompts: a suite or a file. `limit`: only the first so many. `chat`: as in `TraceOptions`.
        max_tokens: generated tokens; None means the suite's, else 256. `natural_stop`: end where the target ends.
        depth: K, drafted tokens per step. `margin`: as in `ParityOptions`, with the table's live gates.
        concurrency: requests at a time.
        timeout: seconds without a byte, `start_timeout`: until a server is ready.
        environment: variables that the engine is started with; one that is set already is left as it is.
        margins: allowed loss by what was done to a candidate, in place of the table's. `profile`: where these are from.
        also_speed: measure the servers with and without drafters; `speed_tokens`: of prompt and text.
        accuracy: a task of lm_eval that the servers are asked as well.
        extend: an earlier, inconclusive report; its requests count too.
        layout, aux_convention, accept_detected: as in `ParityOptions`. `trust_remote_code`: of the target's tokenizer.
        command: argv for the report.
    """

    engine: str
    target: str
    run: Path
    url_ref: str | None = None
    url_cand: tuple[str, ...] = ()
    url: str | None = None
    launch: bool = False
    offline: bool = False
    engine_python: Path | None = None
    server_args: tuple[str, ...] = ()
    tensor_parallel: int = 1
    prompts: str = DEFAULT_SUITE
    limit: int | None = None
    chat: bool | None = None
    max_tokens: int | None = None
    natural_stop: bool = False
    depth: int = 3
    margin: float | None = None
    concurrency: int = 1
    timeout: float = 600.0
    start_timeout: float = 1800.0
    patience: Patience = field(default_factory=Patience)
    environment: Mapping[str, str] = field(default_factory=dict)
    margins: Mapping[Kind, float] = field(default_factory=dict)
    profile: str = ""
    also_speed: bool = False
    speed_tokens: tuple[int, int] = (1024, 1024)
    accuracy: str | None = None
    extend: Path | None = None
    layout: str | Sequence[str] = ()
    aux_convention: str | Sequence[str] = ()
    accept_detected: bool = False
    trust_remote_code: bool = False
    command: tuple[str, ...] = ()

    def said(self, drafters: Sequence[str | Path]) -> list[Said]:
        """How each drafter is to be read, the reference first."""
        return said_of_each(drafters, self.layout, self.aux_convention, accept_detected=self.accept_detected)


def way_of(options: LiveOptions, candidates: int) -> Way:
    """How the engine is reached."""
    given: Mapping[Way, bool] = {
        "two servers": options.url_ref is not None or bool(options.url_cand),
        "one server": options.url is not None,
        "launch": options.launch,
        "offline": options.offline,
    }
    ways = [way for way, is_given in given.items() if is_given]
    if len(ways) != 1:
        raise UsageError(
            "parity on an engine needs one way to reach it" + (f", not {' and '.join(ways)}" if ways else ""),
            cure="give --url-ref and --url-cand, or --url, or --launch, or --offline",
        )
    if ways == ["two servers"] and (options.url_ref is None or len(options.url_cand) != candidates):
        raise UsageError(
            f"{candidates} candidates need --url-ref and {candidates} times --url-cand",
            cure="give the servers of the candidates in their order",
        )
    return ways[0]


def check_options(options: LiveOptions, way: Way, spec: EngineSpec, candidates: Sequence[str | Path]) -> None:
    if not candidates:
        raise UsageError("there is no candidate to compare with the reference", cure="name a second drafter")
    for name, number in (
        ("depth", options.depth),
        ("limit", options.limit),
        ("max-tokens", options.max_tokens),
        ("concurrency", options.concurrency),
        ("tensor-parallel", options.tensor_parallel),
    ):
        if number is not None and number < 1:
            raise UsageError(f"--{name} {number}: too small", cure="give a number from 1")
    live_of(spec.name)
    if way == "offline":
        offline_of(spec.name)
    started = way in ("launch", "offline")
    misplaced = {
        "--engine-python": options.engine_python is not None,
        "--server-arg": bool(options.server_args),
        "--tensor-parallel": options.tensor_parallel != 1,
        "--profile": bool(options.profile),
    }
    if wrong := [name for name, is_given in misplaced.items() if is_given and not started]:
        raise UsageError(f"{', '.join(wrong)} has no meaning for a running server", cure="leave it out")
    if way != "launch" and (options.also_speed or options.accuracy):
        raise UsageError(
            "--also-speed and --accuracy need --launch",
            why="the target is measured without a drafter as well, on a server started alike",
            cure="add --launch in place of the servers",
        )
    if options.also_speed:
        generator_of(spec.name)
    if options.accuracy is not None and options.accuracy not in TASKS:
        raise UsageError(
            f"--accuracy {options.accuracy}: no such task", cure=did_you_mean(options.accuracy, TASKS, ", ".join(TASKS))
        )
    if min(options.speed_tokens) < 1:
        raise UsageError("--speed-tokens: too few", cure="give two numbers from 1, as in 1024,1024")
    if way == "offline" and options.concurrency > 1:
        raise UsageError("--offline asks one request at a time", cure="leave out --concurrency")
    urls = [url for url in (options.url_ref, *options.url_cand) if url]
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise UsageError(
            "two drafters cannot be behind one address", cure="give each its own, or --url to swap them on one server"
        )


def in_full(spec: str) -> str:
    """A local path in full, because servers run in another directory; anything else as it is."""
    path = Path(spec)
    return str(path.resolve()) if path.exists() else spec
