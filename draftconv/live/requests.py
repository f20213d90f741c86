"""One arm's requests, some at a time: repeated when they fail on the way, given up when too many fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from draftconv.engines.client import Client
from draftconv.engines.request_output import RequestOutput
from draftconv.errors import DraftconvError, EngineError, Void
from draftconv.report.verdict import MOST_ERRORS

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request: the same token ids for every arm.

    Attributes:
        id: unique in the run. `cluster`: its prompt, with all turns. `tokens`: of the prompt.
        length: of the text, where it is another than all others'.
    """

    id: str
    cluster: str
    category: str
    tokens: tuple[int, ...]
    length: int | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How much may go wrong.

    Attributes:
        attempts: how often a request that failed on the way is sent. `pause`: seconds before the second
            time, doubled each time.
    """

    attempts: int = 3
    pause: float = 2.0


def most_failures(requests: int) -> int:
    """Failed requests that a run of so many survives; one more and it is void."""
    return int(MOST_ERRORS * requests)


def send_requests(
    client: Client,
    asks: Sequence[LiveRequest],
    keep: Callable[[LiveRequest, RequestOutput], None],
    *,
    allowed: int,
    concurrency: int = 1,
    patience: RetryPolicy = RetryPolicy(),
) -> Mapping[str, str]:
    """Ask everything and keep each answer as it comes; called back in the calling thread.

    Args:
        allowed: failed requests after which the rest need not be asked.

    Returns:
        Why each request that has no answer failed, by its id.

    Raises:
        Void: more than `allowed` requests failed; what was answered has been kept.
    """
    failures: dict[str, str] = {}
    for ask, result in answers(client, asks, concurrency, patience):
        if isinstance(result, RequestOutput):
            keep(ask, result)
            continue
        failures[ask.id] = result.what
        if len(failures) > allowed:
            raise Void(
                f"{len(failures)} requests failed, the last one: {result.what}",
                why=f"more than {100 * MOST_ERRORS:g} % would void the run",
                cure=f"{result.cure or 'look at the log of the server'}; the same command then goes on",
            ) from result
    return failures


def answers(
    client: Client, asks: Sequence[LiveRequest], concurrency: int, patience: RetryPolicy
) -> Iterator[tuple[LiveRequest, RequestOutput | DraftconvError]]:
    """Answers in the order in which they come, or why there is none.

    The threads are daemons: an interrupted run does not wait for an engine that hangs.
    """
    todo: SimpleQueue[LiveRequest] = SimpleQueue()
    done: SimpleQueue[tuple[LiveRequest, RequestOutput | BaseException]] = SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                ask = todo.get_nowait()
            except Empty:
                return
            try:
                # counts that contradict themselves (Void) are not asked again
                how = () if ask.length is None else (ask.length,)  # a client of another package may know no length
                answer = with_retries(partial(client.ask, ask.tokens, *how), patience, EngineError, stop)
                done.put((ask, answer))
            except BaseException as error:  # raised again where the answers are read
                done.put((ask, error))

    logger.info("asking %d requests, %d at a time", len(asks), min(concurrency, len(asks)))
    for ask in asks:
        todo.put(ask)
    for _ in range(min(concurrency, len(asks))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in asks:
            ask, result = done.get()
            if isinstance(result, BaseException) and not isinstance(result, DraftconvError):
                raise result
            yield ask, result
    finally:
        stop.set()


def with_retries(
    ask: Callable[[], Found], patience: RetryPolicy, fault: type[EngineError], stop: threading.Event | None = None
) -> Found:
    """What an engine says, asked for again while it fails in this way.

    Args:
        stop: set when nobody waits for it any more.

    Raises:
        EngineError: it failed every time, or in another way.
    """
    stop, pause = stop or threading.Event(), patience.pause
    for _ in range(patience.attempts - 1):
        try:
            return ask()
        except fault as error:
            logger.info("asking again in %g s: %s", pause, error.what)
            if stop.wait(pause):
                raise
            pause *= 2
    return ask()
