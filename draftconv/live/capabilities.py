"""The engine of a run, as far as draftconv can ask and measure it; what it cannot is refused before anything starts."""

from __future__ import annotations

from draftconv.engines import ENGINES
from draftconv.engines.live import Generator, Live, Offline
from draftconv.errors import UsageError


def live_of(engine: str) -> Live:
    """How an engine is asked.

    Raises:
        UsageError: draftconv has no client for it.
    """
    live = ENGINES[engine].live
    if live is None:
        known = [name for name, other in ENGINES.items() if other.live]
        raise UsageError(
            f"what {ENGINES[engine].title} accepts cannot be counted live",
            why="draftconv has no client for it",
            cure=f"replay a trace with --trace, or give --for {' or '.join(known)}",
        )
    return live


def offline_of(engine: str) -> Offline:
    """How an engine runs without a server.

    Raises:
        UsageError: it does not.
    """
    offline = live_of(engine).offline
    if offline is None:
        raise UsageError(f"--offline has no meaning for {engine}", cure="give --launch, or --url of a server")
    return offline


def generator_of(engine: str) -> Generator:
    """The load generator of an engine.

    Raises:
        UsageError: none is known.
    """
    generator = live_of(engine).generator
    if generator is None:
        raise UsageError(
            f"--also-speed has no meaning for {engine}",
            why="draftconv has no load generator of its own, and knows none of this engine's",
            cure="leave it out",
        )
    return generator
