"""Settings of every test."""

from __future__ import annotations

import signal
from types import FrameType

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does; no test is about that.
settings.register_profile("draftconv", deadline=None)
settings.load_profile("draftconv")


def _stay(_number: int, _frame: FrameType | None) -> None:
    """Go on."""


@pytest.fixture(scope="session", autouse=True)
def _programs_start_as_from_a_terminal() -> None:
    """A signal that our caller ignores stays without effect here, but not in what a test starts.

    `nohup` ignores SIGHUP and a shell ignores Ctrl-C in background jobs; whoever inherits that keeps it, and no test
    could stop its program. A handler of our own is not inherited.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _stay)
