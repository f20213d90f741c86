"""Every arm is served, asked the same, and its answers are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from draftconv.checkpoint import show
from draftconv.engines.client import Client, ServerInfo
from draftconv.engines.request_output import RequestOutput
from draftconv.errors import EngineError, NotReached, Unfinished, UsageError
from draftconv.live.arms import LiveArm
from draftconv.live.benchmarks import ALONE
from draftconv.live.forced_acceptance import refuse_forced, refuse_other_texts
from draftconv.live.launch import address, free_port, launched
from draftconv.live.requests import LiveRequest, most_failures, send_requests, with_retries
from draftconv.live.run import LiveRun
from draftconv.live.run_directory import ArmDirectory, ArmSettings
from draftconv.live.servers import launch_of, served_by, start_of


def serve_arms(run: LiveRun) -> list[Mapping[str, RequestOutput]]:
    """What every arm answered, by request.

    Raises:
        Unfinished: with one server in turn, when the next drafter has to be served first.
    """
    by_arm: list[Mapping[str, RequestOutput]] = []
    asks: Sequence[LiveRequest] = ()
    measured, short = False, _too_few_answers(run)
    for arm in run.arms:
        stored = run.store.arm(arm.number)
        benchmarks = run.benchmarks if arm.number != 1 else None  # the reference is measured once
        finished = stored.finished and not (short and len(stored.answers) < run.requests)
        if not finished or (benchmarks and benchmarks.lacks(stored.directory)):
            if run.way == "one server" and arm.number > 1 and measured:
                raise _swap_needed(run, arm)
            if run.progress:  # starting it may take long
                run.progress(arm.name, len(stored.answers), run.requests)
            with served_by(run, arm, stored.directory) as (client, url):
                _measure(run, arm, stored, client, asks)
                if benchmarks:
                    benchmarks.measure(url, stored.directory, arm.name, run.progress)
            measured = True
        asks = asks or run.asks()
        by_arm.append({ask.id: answer for ask in asks if (answer := stored.get(ask))})
        refuse_forced(arm.name, [*by_arm[-1].values()])
        if run.terms.sampling is None:  # else drafts take part in what is drawn, and texts part
            both = [ask.id for ask in asks if all(ask.id in answers for answers in (by_arm[0], by_arm[-1]))]
            refuse_other_texts(arm.name, *([answers[id] for id in both] for answers in (by_arm[0], by_arm[-1])))
    if run.benchmarks and run.benchmarks.lacks(run.store.alone):
        port = free_port()
        launch = launch_of(run.arms[0].source, run.arms[0].reader, run.live, run.options, alone=True)
        with launched(launch, port, run.store.alone):
            run.benchmarks.measure(address(port), run.store.alone, ALONE, run.progress)
    return by_arm


def _too_few_answers(run: LiveRun) -> bool:
    """Whether a finished run is void because too few requests have an answer of every arm: those are asked again."""
    arms = [run.store.arm(arm.number) for arm in run.arms]
    if not all(stored.finished for stored in arms):
        return False
    answered = sum(all(stored.get(ask) for stored in arms) for ask in run.asks())
    return run.requests - answered > most_failures(run.requests)


def _measure(run: LiveRun, arm: LiveArm, stored: ArmDirectory, client: Client, asks: Sequence[LiveRequest]) -> None:
    """Ask an arm all that it has not answered yet; the reference turn by turn, because later turns quote it."""
    served = with_retries(partial(client.served, run.target_prompts.first[0]), run.options.patience, NotReached)
    _refuse_other(run, arm, served)
    if served.alone and run.options.concurrency > 1:
        raise UsageError(
            f"--concurrency {run.options.concurrency}: this engine tells totals only, so requests go one at a time",
            cure="; or ".join(filter(None, ("leave it out", run.live.side_by_side))),
        )
    stored.agree(
        ArmSettings(arm.about.content, _base_name(served.target), served.version, served.counting, served.settings)
    )
    stored.seen(served.born, served.drafter)
    answered = len(stored.answers)

    def keep(ask: LiveRequest, answer: RequestOutput) -> None:
        nonlocal answered
        stored.keep(ask, answer)
        answered += 1
        if run.progress:
            run.progress(arm.name, answered, run.requests)

    failures: dict[str, str] = {}
    for number in range(run.rounds if arm.number == 0 else 1):
        now = list(run.turns(stored, number)) if arm.number == 0 else asks
        failures |= send_requests(
            client,
            [ask for ask in now if stored.get(ask) is None],
            keep,
            allowed=most_failures(run.requests) - len(failures),
            concurrency=run.options.concurrency,
            patience=run.options.patience,
        )
    stored.seen(served.born, served.drafter, finished=True)


def _refuse_other(run: LiveRun, arm: LiveArm, served: ServerInfo) -> None:
    """Refuse an engine that is not the reference's, or still serves another arm's drafter."""
    if served.room is not None and run.target_prompts.longest > served.room:
        raise UsageError(
            f"the longest prompt and its text take {run.target_prompts.longest} tokens, the server has {served.room}",
            why="texts would be cut, and the last drafts with them",
            cure="raise the server's limit, or lower --max-tokens",
        )
    if run.goal.path is not None and arm.url is None and _base_name(served.target) != run.goal.path.name:
        raise EngineError(f"the server holds {show(served.target)}, not {show(run.goal.name)}")
    theirs = {_base_name(other.source) for other in run.arms}
    if _base_name(served.drafter) != _base_name(arm.source) and _base_name(served.drafter) in theirs:
        raise EngineError(
            f"the server drafts with {show(served.drafter)}, it should with {show(arm.name)}",
            why="the arms would be swapped",
            cure="give every drafter the address of its own server",
        )
    reference = run.store.arm(0).terms()
    if reference is None:
        return
    for what, its, ours in (
        ("target", _base_name(served.target), reference.served),
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
                cure="if it is another, give its drafter another path; else " * (not served.born)
                + (start_of(run, arm) or "start a server with this drafter"),
            )


def _base_name(spec: str) -> str:
    """A directory's own name; Hub ids lose their owner alike on every arm, and files in the Hub's cache are its."""
    *_, repo, folder, name = ["", "", *spec.rstrip("/").split("/")]
    return repo.rsplit("--", 1)[-1] if folder == "snapshots" and repo.startswith("models--") else name


def _swap_needed(run: LiveRun, arm: LiveArm) -> Unfinished:
    return Unfinished(
        f"what was answered so far is kept in {show(run.options.directory)}; {show(arm.name)} is next",
        why="one server has one drafter",
        cure=f"stop the server, {start_of(run, arm) or 'start it with this drafter'}; then repeat the command",
    )
