"""Every arm is served, asked the same, and its answers are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftconv.api.live.arms import LiveArm
from draftconv.api.live.beside import ALONE
from draftconv.api.live.run import Run
from draftconv.api.live.servers import launch_of, served_by, start_of
from draftconv.checkpoint import show
from draftconv.errors import EngineError, Unfinished, UsageError
from draftconv.parity.live.answer import Answer
from draftconv.parity.live.client import Client, Served
from draftconv.parity.live.collect import Ask, collect, most_failures
from draftconv.parity.live.launch import address, free_port, launched
from draftconv.parity.live.store import ArmTerms, Stored
from draftconv.parity.live.switches import refuse_forced
from draftconv.reference.counts import Counts


def all_answers(run: Run) -> list[Mapping[str, Answer]]:
    """What every arm answered, by request.

    Raises:
        Unfinished: with one server in turn, when the next drafter has to be served first.
    """
    found: list[Mapping[str, Answer]] = []
    asks: Sequence[Ask] = ()
    measured = False
    for arm in run.arms:
        stored = run.store.arm(arm.number)
        beside = run.beside if arm.number != 1 else None  # the reference is measured once
        if not stored.finished or (beside and beside.lacks(stored.directory)):
            if run.way == "one server" and arm.number > 1 and measured:
                raise _swap(run, arm)
            with served_by(run, arm, stored.directory) as (client, url):
                _measure(run, arm, stored, client, asks)
                if beside:
                    beside.measure(url, stored.directory, arm.name, run.progress)
            measured = True
        asks = asks or run.asks()
        found.append({ask.id: answer for ask in asks if (answer := stored.get(ask))})
        refuse_forced(arm.name, Counts.pooled(answer.counts for answer in found[-1].values()))
    if run.beside and run.beside.lacks(run.store.alone):
        port = free_port()
        launch = launch_of(run.arms[0].source, run.interface, run.options, alone=True)
        with launched(launch, port, run.store.alone):
            run.beside.measure(address(port), run.store.alone, ALONE, run.progress)
    return found


def _measure(run: Run, arm: LiveArm, stored: Stored, client: Client, asks: Sequence[Ask]) -> None:
    """Ask an arm all that it has not answered yet; the reference turn by turn, because later turns quote it."""
    served = client.served(run.asked.first[0])
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
        now = list(run.turns(stored, number)) if arm.number == 0 else asks
        failures |= collect(
            client,
            [ask for ask in now if stored.get(ask) is None],
            keep,
            allowed=most_failures(run.requests) - len(failures),
            concurrency=run.options.concurrency,
            patience=run.options.patience,
        )
    stored.seen(served.born, served.drafter, finished=True)


def _refuse_other(run: Run, arm: LiveArm, served: Served) -> None:
    """Refuse an engine that is not the reference's, or still serves another arm's drafter."""
    if served.room is not None and run.asked.longest > served.room:
        raise UsageError(
            f"the longest prompt and its text take {run.asked.longest} tokens, the server has {served.room}",
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
                cure=start_of(run, arm) or "start a server with this drafter",
            )


def _base(spec: str) -> str:
    """A directory's own name; Hub ids lose their owner alike on every arm."""
    return spec.rstrip("/").rsplit("/", 1)[-1]


def _swap(run: Run, arm: LiveArm) -> Unfinished:
    return Unfinished(
        f"what was answered so far is kept in {show(run.options.run)}; {show(arm.name)} is next",
        why="one server has one drafter",
        cure=f"stop the server, {start_of(run, arm) or 'start it with this drafter'}; then repeat the command",
    )
