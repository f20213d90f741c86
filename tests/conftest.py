"""Settings of every test."""

from __future__ import annotations

import signal

from hypothesis import settings

# How long an example takes depends on what else the machine does; no test is about that.
settings.register_profile("draftconv", deadline=None)
settings.load_profile("draftconv")

# A shell starts background jobs with Ctrl-C ignored, and so would be every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
