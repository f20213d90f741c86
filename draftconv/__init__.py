"""draftconv: convert, check and prove EAGLE-3 drafters.

One function per command, with the command's name and its options as keyword arguments:

    inspect      what a drafter is, what is wrong with it, and which engine reads it rightly
    convert      write it in another layout
    quantize     write it smaller, in the format that an engine really runs
    prune        keep the rows of its head that the target's text needs
    slim         find the smallest that is still as good, and certify it
    verify       prove that an output is its source
    diff         what differs between two drafters
    serve        the command that serves it
    trace        run a target once and keep what it did
    accept       measure on a trace how much single drafters accept
    parity       judge on a trace whether drafters accept as much as their reference
    live_parity  the same on a running engine
    doctor       say why a running server accepts less than it should
    push         upload an output to the Hub

    >>> import draftconv
    >>> draftconv.inspect("drafter").passed                      # doctest: +SKIP
    True
    >>> help(draftconv.convert)                                  # doctest: +SKIP

What they return tells itself in a line, and as tables in a notebook. Every expected failure is a `DraftconvError`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from draftconv.api.accept import accept
    from draftconv.api.convert import convert
    from draftconv.api.diff import diff
    from draftconv.api.doctor import doctor
    from draftconv.api.inspect import inspect
    from draftconv.api.live import live_parity
    from draftconv.api.parity import parity
    from draftconv.api.prune import prune
    from draftconv.api.push import push
    from draftconv.api.quantize import quantize
    from draftconv.api.serve import serve
    from draftconv.api.slim import slim
    from draftconv.api.trace import trace
    from draftconv.api.verify import verify
    from draftconv.errors import DraftconvError

_HOMES = {
    "DraftconvError": "draftconv.errors",
    "accept": "draftconv.api.accept",
    "convert": "draftconv.api.convert",
    "diff": "draftconv.api.diff",
    "doctor": "draftconv.api.doctor",
    "inspect": "draftconv.api.inspect",
    "live_parity": "draftconv.api.live",
    "parity": "draftconv.api.parity",
    "prune": "draftconv.api.prune",
    "push": "draftconv.api.push",
    "quantize": "draftconv.api.quantize",
    "serve": "draftconv.api.serve",
    "slim": "draftconv.api.slim",
    "trace": "draftconv.api.trace",
    "verify": "draftconv.api.verify",
}

__all__ = [
    "DraftconvError",
    "accept",
    "convert",
    "diff",
    "doctor",
    "inspect",
    "live_parity",
    "parity",
    "prune",
    "push",
    "quantize",
    "serve",
    "slim",
    "trace",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import each function with its room on first use, so that `import draftconv` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'draftconv' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """With the functions that were not used yet, for `help` and completion."""
    return sorted({*globals(), *__all__})
