"""Accept-length parity on a running engine: every arm is served, asked the same, and its own counts are compared.

The reference goes first; what it answers is quoted in later turns, so every arm gets the same token
ids. Then it is asked everything once more (A/A), then the candidates.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import draftconv
from draftconv.api.asking import (
    GENERATION,
    MAX_TOKENS,
    first_turns,
    goal_of,
    lengths_of,
    refuse_too_long,
    target_files,
)
from draftconv.api.hints import hints
from draftconv.api.lineup import Names, about_arm, bytes_of, done, gate
from draftconv.api.serve import serve
from draftconv.checkpoint import Tally, open_checkpoint, show
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.engines import EngineSpec, parse_engine
from draftconv.errors import DraftconvError, EngineError, Unfinished, UsageError
from draftconv.layouts.reading import read_drafter
from draftconv.parity.dialogue import Dialogue, end_tokens, open_dialogue, prompts_hash
from draftconv.parity.live.answer import Answer, first_split
from draftconv.parity.live.client import Asking, Client, Interface, Served
from draftconv.parity.live.collect import Ask, Patience, collect, most_failures
from draftconv.parity.live.commands import measuring, without_server
from draftconv.parity.live.interfaces import INTERFACES
from draftconv.parity.live.launch import Launch, address, free_port, launched
from draftconv.parity.live.offline import offline
from draftconv.parity.live.store import ArmTerms, Store, Stored, Terms
from draftconv.parity.live.switches import refuse_forced, refuse_switches
from draftconv.parity.prompts import DEFAULT_SUITE, Prompt, load_prompts
from draftconv.parity.records import Record
from draftconv.parity.report import read_report
from draftconv.parity.report.extended import extended, refuse_unextendable
from draftconv.parity.report.model import About, Arm, Comparison, Diagnostics, Report, Texts
from draftconv.parity.trace import token_hash
from draftconv.parity.turns import turn_count
from draftconv.parity.verdict import Gate
from draftconv.reference.counts import Counts

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
        launch: start a server for each arm. `offline`: vLLM without one.
        engine_python: of the environment that has the engine; None takes its programs from the PATH, and for
            `offline` this Python.
        server_args: further arguments for the engine. `tensor_parallel`: devices for the target.
        prompts: a suite or a file. `limit`: only the first so many. `chat`: as in `TraceOptions`.
        max_tokens: generated tokens; None means the suite's, else 256. `natural_stop`: end where the target ends.
        depth: K, drafted tokens per step. `margin`: as in `ParityOptions`, with the table's live gates.
        concurrency: requests at a time.
        timeout: seconds without a byte, `start_timeout`: until a server is ready.
        extend: an earlier, inconclusive report; its requests count too.
        layout, aux_convention: how to read the drafters. `trust_remote_code`: of the target's tokenizer.
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
    extend: Path | None = None
    layout: str | None = None
    aux_convention: str | None = None
    trust_remote_code: bool = False
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveArm:
    """One arm of the run.

    Attributes:
        number: its directory in the run; 0 is the reference, 1 the reference again.
        source: what the engine is given as its drafter. `url`: of its running server, and the option it came from.
    """

    number: int
    about: Arm
    source: str
    gate: Gate | None = None
    url: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return self.about.name


@dataclass(slots=True)
class _Run:
    """A run on its way."""

    options: LiveOptions
    way: Way
    spec: EngineSpec
    interface: Interface
    goal: Target
    asking: Asking
    prompts: Sequence[Prompt]
    first: Sequence[Sequence[int]]
    dialogue: Dialogue
    store: Store
    progress: Progress | None
    arms: Sequence[LiveArm]
    launches: Sequence[Launch]
    longest: int
    asks: list[Ask] = field(default_factory=list, init=False)

    @property
    def requests(self) -> int:
        return sum(map(turn_count, self.prompts))

    @property
    def rounds(self) -> int:
        """Turns of the longest conversation."""
        return max(map(turn_count, self.prompts))


def live_parity(
    reference: str | Path,
    candidates: Sequence[str | Path],
    options: LiveOptions,
    *,
    progress: Progress | None = None,
) -> Report:
    """Run drafters on an engine and judge each candidate against the reference.

    Raises:
        UsageError: nothing to compare, options that contradict each other, or another run's directory.
        BadCheckpoint, Undecided, BadPrompts: drafter, target or prompts cannot be read.
        CheckFailed: the engine would refuse or mis-read a drafter (with `launch` and `offline`).
        EngineError: the engine is not there, does not answer as it should, or another drafter or target is served.
        Void: counts that are not to be trusted, or more than 5 % of an arm's requests failed.
        Unfinished: with `url`: the next drafter has to be served first.
    """
    way = _way(options, len(candidates))
    spec = parse_engine(options.engine)
    interface = INTERFACES[spec.name]
    _check(options, way, spec, candidates)
    earlier = read_report(options.extend) if options.extend else None
    if earlier:
        refuse_unextendable(earlier, len(candidates))
    goal = goal_of(_located(options.target))
    directory, checkpoint = target_files(goal, weights=False)
    asked = load_prompts(options.prompts, options.limit)
    eos = end_tokens(checkpoint.config, checkpoint.sidecars.get(GENERATION, {}))
    dialogue = open_dialogue(
        directory, asked.prompts, eos, chat=options.chat, trust_remote_code=options.trust_remote_code
    )
    first = first_turns(dialogue, asked.prompts, goal)
    length = options.max_tokens or asked.max_tokens or MAX_TOKENS
    lengths = [
        lengths_of(prompt, ids, dialogue, length + options.depth)
        for prompt, ids in zip(asked.prompts, first, strict=True)
    ]
    refuse_too_long(asked.prompts, lengths, goal)
    arms = _arms(reference, candidates, goal, options, progress)
    terms = Terms(
        target=checkpoint.name + (f"@{checkpoint.revision}" if checkpoint.revision else ""),
        engine=spec.name,
        way=way,
        prompts=asked.source,
        prompts_sha256=prompts_hash(asked.prompts, first),
        depth=options.depth,
        length=length,
        ignore_eos=not options.natural_stop,
        concurrency=options.concurrency,
        arguments=(
            *options.server_args,
            *([f"tensor parallel {options.tensor_parallel}"] * (options.tensor_parallel > 1)),
        ),
    )
    asking = Asking(options.depth, length, not options.natural_stop, options.timeout)
    launches = [_launch(arm, interface, options) for arm in arms] if way in ("launch", "offline") else []
    with Store(options.run, terms) as store:
        run = _Run(
            options=options,
            way=way,
            spec=spec,
            interface=interface,
            goal=goal,
            asking=asking,
            prompts=asked.prompts,
            first=first,
            dialogue=dialogue,
            store=store,
            progress=progress,
            arms=arms,
            launches=launches,
            longest=max(map(max, lengths)),
        )
        answers = _all_answers(run)
        found = _report(run, answers, terms)
    return extended(earlier, found) if earlier else found


# ── options ────────────────────────────────────────────────────────────────────────


def _way(options: LiveOptions, candidates: int) -> Way:
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


def _check(options: LiveOptions, way: Way, spec: EngineSpec, candidates: Sequence[str | Path]) -> None:
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
    if way == "offline" and spec.name != "vllm":
        raise UsageError(f"--offline has no meaning for {spec.name}", cure="give --launch, or --url of a server")
    started = way in ("launch", "offline")
    misplaced = {
        "--engine-python": options.engine_python is not None,
        "--server-arg": bool(options.server_args),
        "--tensor-parallel": options.tensor_parallel != 1,
    }
    if wrong := [name for name, is_given in misplaced.items() if is_given and not started]:
        raise UsageError(f"{', '.join(wrong)} has no meaning for a running server", cure="leave it out")
    if way == "offline" and options.concurrency > 1:
        raise UsageError("--offline asks one request at a time", cure="leave out --concurrency")
    urls = [url for url in (options.url_ref, *options.url_cand) if url]
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise UsageError(
            "two drafters cannot be behind one address", cure="give each its own, or --url to swap them on one server"
        )


def _located(spec: str) -> str:
    """A local path in full, because servers run in another directory; anything else as it is."""
    path = Path(spec)
    return str(path.resolve()) if path.exists() else spec


def _arms(
    reference: str | Path,
    candidates: Sequence[str | Path],
    goal: Target,
    options: LiveOptions,
    progress: Progress | None,
) -> list[LiveArm]:
    """The reference, the reference again, the candidates."""
    told = hints(options.layout, options.aux_convention, goal)
    drafters = [read_drafter(open_checkpoint(spec, download=True), told) for spec in (reference, *candidates)]
    total = sum(map(bytes_of, drafters))
    tally = Tally(None if progress is None else lambda done: progress("reading", done, total))
    names = Names()
    urls = _urls(options, len(candidates))

    def arm(number: int, drafter: Drafter, source: str | Path, url: tuple[str, str] | None) -> LiveArm:
        about = about_arm(names.new(drafter.checkpoint.name), drafter, tally)
        wanted = gate(done(drafters[0], drafter), options.margin, "live") if number else None
        return LiveArm(number, about, _located(str(source)), wanted, url)

    first = arm(0, drafters[0], reference, urls[0])
    again = replace(first, number=1, about=replace(first.about, name=names.new(f"{first.name} again")))
    rest = zip(drafters[1:], candidates, urls[1:], strict=True)
    return [first, again, *(arm(number, *row) for number, row in enumerate(rest, 2))]


def _urls(options: LiveOptions, candidates: int) -> list[tuple[str, str] | None]:
    if options.url_ref is not None:
        return [(options.url_ref, "--url-ref"), *((url, "--url-cand") for url in options.url_cand)]
    return [(options.url, "--url") if options.url else None] * (1 + candidates)


# ── arms ───────────────────────────────────────────────────────────────────────────


def _all_answers(run: _Run) -> list[Mapping[str, Answer]]:
    """What every arm answered, by request.

    Raises:
        Unfinished: with one server in turn, when the next drafter has to be served first.
    """
    found: list[Mapping[str, Answer]] = []
    measured = False
    for arm in run.arms:
        stored = run.store.arm(arm.number)
        if not stored.finished:
            if run.way == "one server" and arm.number > 1 and measured:
                raise _swap(run, arm)
            with _client(run, arm, stored.directory) as client:
                _measure(run, arm, stored, client)
            measured = True
        if arm.number == 0:
            run.asks = [ask for number in range(run.rounds) for ask in _turns(run, stored, number)]
        found.append({ask.id: answer for ask in run.asks if (answer := stored.get(ask))})
        refuse_forced(arm.name, Counts.pooled(answer.counts for answer in found[-1].values()))
    return found


def _turns(run: _Run, stored: Stored, number: int) -> Iterator[Ask]:
    """Turn `number` (from 0) of every prompt whose earlier turns the reference has answered."""
    for prompt, first in zip(run.prompts, run.first, strict=True):
        count = turn_count(prompt)
        if number >= count:
            continue
        past: list[tuple[Sequence[int], Sequence[int]]] = []
        ask = Ask(_name(prompt, 0), prompt.id, prompt.category, tuple(first))
        for turn in range(1, number + 1):
            if (answer := stored.get(ask)) is None:
                break
            past.append((ask.tokens, _until_end(answer.tokens, run.dialogue.eos)))
            ask = replace(ask, id=_name(prompt, turn), tokens=tuple(run.dialogue.render(prompt, past)))
        else:
            yield ask


def _name(prompt: Prompt, turn: int) -> str:
    return f"{prompt.id}/{turn + 1}" if turn_count(prompt) > 1 else prompt.id


def _until_end(tokens: Sequence[int], eos: Sequence[int]) -> Sequence[int]:
    """A text as it is quoted: what follows its end was written only to be counted."""
    return tokens[: next((at + 1 for at, token in enumerate(tokens) if token in eos), len(tokens))]


def _measure(run: _Run, arm: LiveArm, stored: Stored, client: Client) -> None:
    """Ask an arm all that it has not answered yet."""
    served = client.served(run.first[0])
    _refuse_other(run, arm, served)
    if served.alone and run.options.concurrency > 1:
        raise UsageError(
            f"--concurrency {run.options.concurrency}: this engine tells totals only, so requests go one at a time",
            cure="leave it out"
            + ("; or start vLLM 0.32 with --per-request-spec-decode-metrics summary" * (run.spec.name == "vllm")),
        )
    stored.agree(ArmTerms(arm.about.content, _base(served.target), served.version, served.counting, served.settings))
    stored.seen(served.born, served.drafter)
    answered = len(stored.answers)

    def keep(ask: Ask, answer: Answer) -> None:
        nonlocal answered
        stored.keep(ask, answer)
        answered += 1
        if run.progress:
            run.progress(arm.name, answered, run.requests)

    failures: dict[str, str] = {}
    for number in range(run.rounds if arm.number == 0 else 1):
        asks = list(_turns(run, stored, number)) if arm.number == 0 else run.asks
        failures |= collect(
            client,
            [ask for ask in asks if stored.get(ask) is None],
            keep,
            allowed=most_failures(run.requests) - len(failures),
            concurrency=run.options.concurrency,
            patience=run.options.patience,
        )
    stored.seen(served.born, served.drafter, finished=True)


def _refuse_other(run: _Run, arm: LiveArm, served: Served) -> None:
    """Refuse an engine that is not the reference's, or still serves another arm's drafter."""
    if served.room is not None and run.longest > served.room:
        raise UsageError(
            f"the longest prompt and its text take {run.longest} tokens, the server has {served.room}",
            why="texts would be cut, and the last drafts with them",
            cure="raise the server's limit, or lower --max-tokens",
        )
    if run.goal.path is not None and arm.url is None and _base(served.target) != run.goal.path.name:
        raise EngineError(f"the server holds {show(served.target)}, not {show(run.goal.name)}")
    reference = run.store.arm(0).terms()
    if reference is None:
        return
    for what, its, ours in (
        ("target", _base(served.target), reference.served),
        ("version", served.version, reference.version),
        ("way of counting", served.counting, reference.counting),
        *((name, value, reference.settings.get(name)) for name, value in served.settings.items()),
    ):
        if its != ours:
            raise EngineError(
                f"{show(arm.name)} is served with {what} {show(its)}, the reference with {show(ours)}",
                why="the difference would be taken for the drafter's",
                cure="serve all drafters with one engine and the same options",
            )
    for other in run.arms:
        if max(other.number, 1) == max(arm.number, 1):  # the reference and itself share a server
            continue
        born, drafter = run.store.arm(other.number).last_seen
        if (served.born and served.born == born) or (served.drafter and served.drafter == drafter):
            raise EngineError(
                f"the server is the one that answered for {show(other.name)}, not one with {show(arm.name)}",
                why="a drafter would be compared with itself",
                cure=_start(run, arm) or "start a server with this drafter",
            )


def _base(spec: str) -> str:
    """A directory's own name; Hub ids lose their owner alike on every arm."""
    return spec.rstrip("/").rsplit("/", 1)[-1]


# ── engines ────────────────────────────────────────────────────────────────────────


@contextmanager
def _client(run: _Run, arm: LiveArm, directory: Path) -> Iterator[Client]:
    """The engine of an arm, until this is left."""
    if arm.url is not None:
        yield run.interface.connect(*arm.url, run.asking)
        return
    launch = run.launches[arm.number]
    if run.way == "offline":
        argv = without_server(launch.argv)
        if run.asking.ignore_eos:
            argv = (*argv, "--skip-tokenizer-init")  # only an end that counts needs the tokenizer's
        python = run.options.engine_python or Path(sys.executable)
        with offline(
            argv,
            python,
            run.asking,
            directory,
            target=run.goal.name,
            drafter=arm.source,
            patience=run.options.start_timeout,
        ) as engine:
            yield engine
        return
    port = free_port()
    client = run.interface.connect(address(port), "--launch", run.asking)
    with launched(launch, port, directory):
        yield client


def _launch(arm: LiveArm, interface: Interface, options: LiveOptions) -> Launch:
    """The server of an arm, with the command of `draftconv serve`."""
    command = serve(
        arm.source,
        options.engine,
        _located(options.target),
        drafts=options.depth,
        tensor_parallel=options.tensor_parallel,
        layout=options.layout,
        aux_convention=options.aux_convention,
    )
    python = options.engine_python.absolute() if options.engine_python else None
    launch = measuring(
        command.argv, command.files, interface, options.server_args, patience=options.start_timeout, python=python
    )
    refuse_switches((*launch.argv, *launch.files.values()), os.environ)
    return launch


def _start(run: _Run, arm: LiveArm) -> str:
    """What starts the server of an arm; empty where draftconv cannot say."""
    try:
        return f"start it with: {shlex.join(_launch(arm, run.interface, run.options).argv)}"
    except DraftconvError:
        return ""


def _swap(run: _Run, arm: LiveArm) -> Unfinished:
    return Unfinished(
        f"what was answered so far is kept in {show(run.options.run)}; {show(arm.name)} is next",
        why="one server has one drafter",
        cure=f"stop the server, {_start(run, arm) or 'start it with this drafter'}; then repeat the command",
    )


# ── the report ─────────────────────────────────────────────────────────────────────


def _report(run: _Run, answers: Sequence[Mapping[str, Answer]], terms: Terms) -> Report:
    """What was found; a request that one arm failed to answer counts for none."""
    asks = [ask for ask in run.asks if all(ask.id in found for found in answers)]
    errors = run.requests - len(asks)
    records = tuple(
        Record(
            arm=arm.name,
            id=ask.id,
            cluster=ask.cluster,
            category=ask.category,
            prompt=len(ask.tokens),
            counted=len(found[ask.id].tokens),
            counts=found[ask.id].counts,
            tokens=token_hash((*ask.tokens, *found[ask.id].tokens)),
        )
        for ask in asks
        for arm, found in zip(run.arms, answers, strict=True)
    )
    reference, again, *rest = run.arms
    repeated = _texts(asks, answers[0], answers[1])
    comparisons = tuple(
        Comparison.of(
            records,
            reference.name,
            arm.name,
            arm.gate or gate("conversion", None, "live"),
            how="live",
            again=again.name,
            errors=errors,
            diagnostics=Diagnostics(texts=_texts(asks, answers[0], found), again=repeated),
        )
        for arm, found in zip(rest, answers[2:], strict=True)
    )
    return Report(_about(run, terms, len(asks)), tuple(arm.about for arm in run.arms), records, comparisons)


def _texts(asks: Sequence[Ask], ours: Mapping[str, Answer], theirs: Mapping[str, Answer]) -> Texts:
    found = [first_split(ours[ask.id].tokens, theirs[ask.id].tokens) for ask in asks]
    splits = sorted(at for at in found if at is not None)
    return Texts(len(found), len(found) - len(splits), tuple(splits))


def _about(run: _Run, terms: Terms, requests: int) -> About:
    options, reference = run.options, run.store.arm(0).terms()
    version, counting = (reference.version, reference.counting) if reference else ("", "")
    told = reference.settings if reference else {}
    return About(
        how="live",
        target=terms.target,
        prompts=terms.prompts,
        prompts_sha256=terms.prompts_sha256,
        depth=terms.depth,
        version=draftconv.__version__,
        command=options.command,
        settings={
            "requests": str(requests),
            "tokens": f"{terms.length} per request, its end ignored"
            if terms.ignore_eos
            else f"at most {terms.length} per request, to its natural end",
            "sampling": "greedy",
            "engine": f"{run.interface.title} {version}",
            "reached": WAYS[run.way],
            "counts": counting,
            "requests at a time": str(options.concurrency),
            "draftconv's client": f"run on {run.interface.proven}"
            if run.interface.proven
            else "not run on the engine: held to its documented answers by stub servers",
            **({"server": _told(run)} if run.way in ("launch", "offline") else {}),
            **told,
        },
    )


WAYS: Mapping[Way, str] = {
    "two servers": "running servers, one for each drafter",
    "one server": "a running server, one drafter after another",
    "launch": "servers that draftconv started, one after another",
    "offline": "vLLM without a server, one process for each drafter",
}


def _told(run: _Run) -> str:
    """Arguments that were added to the command of `draftconv serve`, for both arms alike."""
    return shlex.join((*run.interface.measuring, *run.options.server_args))
