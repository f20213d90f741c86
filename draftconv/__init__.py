"""draftconv: convert, check and prove EAGLE-3 drafters.

One function per command, with the command's name and arguments:

    >>> import draftconv
    >>> draftconv.inspect("drafter").drafter.kind.title          # doctest: +SKIP
    '3.1'
    >>> draftconv.convert("drafter", "out", to="vllm")           # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from draftconv.api.convert import ConvertOptions, convert
    from draftconv.api.diff import diff
    from draftconv.api.inspect import inspect
    from draftconv.api.live import LiveOptions, live_parity
    from draftconv.api.parity import ParityOptions, parity
    from draftconv.api.push import push
    from draftconv.api.quantize import QuantizeOptions, quantize
    from draftconv.api.serve import serve
    from draftconv.api.trace import TraceOptions, trace
    from draftconv.api.verify import verify
    from draftconv.errors import DraftconvError

_HOMES = {
    "ConvertOptions": "draftconv.api.convert",
    "DraftconvError": "draftconv.errors",
    "LiveOptions": "draftconv.api.live",
    "ParityOptions": "draftconv.api.parity",
    "QuantizeOptions": "draftconv.api.quantize",
    "TraceOptions": "draftconv.api.trace",
    "convert": "draftconv.api.convert",
    "diff": "draftconv.api.diff",
    "inspect": "draftconv.api.inspect",
    "live_parity": "draftconv.api.live",
    "parity": "draftconv.api.parity",
    "push": "draftconv.api.push",
    "quantize": "draftconv.api.quantize",
    "serve": "draftconv.api.serve",
    "trace": "draftconv.api.trace",
    "verify": "draftconv.api.verify",
}

__all__ = [
    "ConvertOptions",
    "DraftconvError",
    "LiveOptions",
    "ParityOptions",
    "QuantizeOptions",
    "TraceOptions",
    "convert",
    "diff",
    "inspect",
    "live_parity",
    "parity",
    "push",
    "quantize",
    "serve",
    "trace",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import each function with its room on first use, so that `import draftconv` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'draftconv' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
