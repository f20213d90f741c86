"""How arms are run and compared on an engine, and which options go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from draftconv import limits
from draftconv.checkpoint.files import exists
from draftconv.engines import EngineSpec
from draftconv.errors import UsageError, did_you_mean
from draftconv.layouts.drafter_reader import DrafterReader, drafter_readers
from draftconv.live.accuracy import TASKS
from draftconv.live.capabilities import generator_of, live_of, offline_of
from draftconv.live.requests import RetryPolicy
from draftconv.options import (
    ACCEPT_DETECTED,
    NUM_SPECULATIVE_TOKENS,
    SEED,
    TEMPERATURE,
    TENSOR_PARALLEL_SIZE,
    TOP_K,
    TOP_P,
    Option,
    Place,
    Several,
    option,
    python_only,
    several,
)
from draftconv.reference.sampling import Sampling, sampling_of
from draftconv.replay.options import (
    ANNOUNCE,
    EXTEND,
    LIMIT,
    MARGIN,
    REFERENCE_AUX_CONVENTION,
    REFERENCE_LAYOUT,
    Announce,
)
from draftconv.report.verdict import Kind
from draftconv.traces.prompts import DEFAULT_SUITE

Way = Literal["two servers", "one server", "launch", "offline"]

Progress = Callable[[str, int, int], None]
"""Told the stage (`reading`, then each arm's name), and how much of it is done and in all: bytes, then requests."""


def _live(spec: Option) -> Option:
    return replace(spec, help=f"Live: {spec.help[0].lower()}{spec.help[1:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """How arms are run and compared on an engine."""

    engine: str = option(
        ...,
        "Live: the engine that serves the target with each drafter in turn.",
        flag="--for",
        metavar="ENGINE[@VERSION][:HARDWARE]",
    )
    target: Place = option(
        ..., "Live: the model that is served: a directory, a Hub id or a known name.", metavar="TARGET", parse=str
    )
    run: Place = option(..., "Live: keeps every answer; the same command goes on with it.", metavar="DIR")
    url_ref: str | None = option(None, "Live: a running server with REFERENCE.", metavar="URL")
    url_cand: Several = option(
        (), "Live: a running server with CANDIDATE; repeated for several, in their order.", metavar="URL"
    )
    url: str | None = option(
        None, "Live: one running server; the command says which drafter to start it with next.", metavar="URL"
    )
    launch: bool = option(False, "Live: start a server for each drafter, with the command of `draftconv serve`.")
    offline: bool = option(False, "Live: the engine without a server, one process for each drafter.")
    engine_python: Place | None = option(
        None,
        "Live: the Python of the engine's environment, for --launch and --offline.",
        metavar="PYTHON",
        file=True,
    )
    server_args: Several = option(
        (), "Live: one more argument for the engine that is started; may be repeated.", flag="--server-arg",
        metavar="ARG",
    )  # fmt: skip
    tensor_parallel_size: int = option(
        1, replace(TENSOR_PARALLEL_SIZE, help="Live: devices for the target that is started.")
    )
    prompts: str = option(DEFAULT_SUITE, "Live: a prompt suite, or a .jsonl, .json or .txt file.", metavar="SUITE|FILE")
    chat: bool | None = option(
        None,
        "Live: apply the chat template, or take text as it is.  [default: --chat if the tokenizer has a template]",
        flag="--chat/--raw",
    )
    limit: int | None = option(None, LIMIT)
    max_tokens: int | None = option(
        None, "Live: tokens of each text.  [default: the suite's, else 256]", metavar="N", least=1
    )
    natural_stop: bool = option(False, "Live: end a text where the target ends it, not at --max-tokens.")
    num_speculative_tokens: int = option(3, NUM_SPECULATIVE_TOKENS)
    temperature: float | None = option(None, _live(TEMPERATURE))
    top_p: float | None = option(None, _live(TOP_P))
    top_k: int | None = option(None, _live(TOP_K))
    seed: int | None = option(None, _live(SEED))
    margin: float | None = option(None, MARGIN)
    concurrency: int = option(1, "Live: requests at a time.", metavar="N", least=1)
    timeout: float = option(
        float(limits.ENGINE_ANSWER.value),
        "Live: how long the answer to a request may take.",
        metavar="SECONDS",
        above=0,
    )
    start_timeout: float = option(1800.0, "Live: how long a server may take to be ready.", metavar="SECONDS", above=0)
    also_speed: bool = option(
        False, "Live: measure each server, and one without drafter, by the engine's load generator."
    )
    speed_tokens: tuple[int, int] = option(
        (1024, 1024), "Live: tokens of prompt and text for --also-speed.", metavar="IN OUT", least=1
    )
    accuracy: str | None = option(None, "Live: ask each server a benchmark of lm_eval as well.", choices=tuple(TASKS))
    trust_remote_code: bool = option(False, "Live: run the Python code of the target's tokenizer.")
    extend: Place | None = option(None, EXTEND)
    layout: Several = option((), REFERENCE_LAYOUT)
    aux_convention: Several = option((), REFERENCE_AUX_CONVENTION)
    accept_detected: bool = option(False, ACCEPT_DETECTED)
    patience: RetryPolicy = field(
        default_factory=RetryPolicy, metadata={"about": "how long an engine is waited for that fails or is overloaded"}
    )
    environment: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"about": "variables that the engine is started with; one that is set already is left as it is"},
    )
    margins: Mapping[Kind, float] = field(
        default_factory=dict,
        metadata={"about": "allowed loss by what was done to a candidate, in place of the table's"},
    )
    profile: str = python_only("", "where `margins` are from")
    command: tuple[str, ...] = python_only((), "the command, for the report")
    progress: Progress | None = python_only(
        None, "told the stage (`reading`, then each arm's name), and how much of it is done and in all"
    )
    announce: Announce | None = python_only(None, ANNOUNCE)

    @property
    def sampling(self) -> Sampling | None:
        """How texts are drawn; None for greedy ones.

        Raises:
            UsageError: a number out of range, or one of the others without a temperature.
        """
        return sampling_of(self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed)

    @property
    def directory(self) -> Path:
        """`run`, as a path."""
        return Path(self.run)

    @property
    def python(self) -> Path | None:
        """`engine_python` from wherever it is started."""
        return Path(self.engine_python).absolute() if self.engine_python is not None else None

    def readers(self, drafters: Sequence[str | Path]) -> list[DrafterReader]:
        """How each drafter is to be read, the reference first."""
        return drafter_readers(drafters, self.layout, self.aux_convention, accept_detected=self.accept_detected)


def way_of(options: LiveOptions, candidates: int) -> Way:
    """How the engine is reached."""
    chosen: Mapping[Way, bool] = {
        "two servers": options.url_ref is not None or bool(options.url_cand),
        "one server": options.url is not None,
        "launch": options.launch,
        "offline": options.offline,
    }
    ways = [way for way, is_given in chosen.items() if is_given]
    if len(ways) != 1:
        raise UsageError(
            "parity on an engine needs one way to reach it" + (f", not {' and '.join(ways)}" if ways else ""),
            cure="give --url-ref and --url-cand, or --url, or --launch, or --offline",
        )
    if ways == ["two servers"] and (options.url_ref is None or len(several(options.url_cand)) != candidates):
        raise UsageError(
            f"{candidates} candidates need --url-ref and {candidates} times --url-cand",
            cure="give the servers of the candidates in their order",
        )
    return ways[0]


def check_options(options: LiveOptions, way: Way, spec: EngineSpec, candidates: Sequence[str | Path]) -> None:
    if not candidates:
        raise UsageError("there is no candidate to compare with the reference", cure="name a second drafter")
    for name, number in (
        ("num-speculative-tokens", options.num_speculative_tokens),
        ("limit", options.limit),
        ("max-tokens", options.max_tokens),
        ("concurrency", options.concurrency),
        ("tensor-parallel-size", options.tensor_parallel_size),
    ):
        if number is not None and number < 1:
            raise UsageError(f"--{name} {number}: too small", cure="give a number from 1")
    live = live_of(spec.name)
    if (sampling := options.sampling) is not None:
        live.refuse_sampling(sampling, spec.hardware, several(options.server_args))
    if way == "offline":
        offline_of(spec.name)
    started = way in ("launch", "offline")
    misplaced = {
        "--engine-python": options.engine_python is not None,
        "--server-arg": bool(options.server_args),
        "--tensor-parallel-size": options.tensor_parallel_size != 1,
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
    urls = [url for url in (options.url_ref, *several(options.url_cand)) if url]
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise UsageError(
            "two drafters cannot be behind one address", cure="give each its own, or --url to swap them on one server"
        )


def in_full(spec: Place) -> str:
    """A local path in full, because servers run in another directory; anything else as it is."""
    path = Path(spec)
    return str(path.resolve()) if exists(path) else str(spec)
