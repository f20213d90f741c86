"""Which kernels an engine chose, by its own log: what the kernel matrix predicts, it says here or does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from draftconv.checkpoint.text import safe
from draftconv.engines.live import LogLine

NOT_SAID = "not said"


def logged_kernels(lines: Sequence[LogLine], log: Iterable[str]) -> tuple[str, ...]:
    """What an engine chose, in the order in which it said so, each once: `linear: MarlinLinearKernel (…)`.

    A kernel that is named with its scheme is not named without it.
    """
    kernels: dict[str, None] = {}
    for text in log:
        for line in lines:
            if match := re.search(line.pattern, text):
                kernel, *scheme = match.groups()
                kernels[f"{line.what}: {safe(kernel)}" + (f" ({safe(scheme[0])})" if scheme else "")] = None
    return tuple(line for line in kernels if not any(other.startswith(f"{line} (") for other in kernels))


def kernels_in_log(lines: Sequence[LogLine], path: Path) -> str:
    """The same of a log file, as a text; `not said` where it says nothing or is not there."""
    if not path.exists():
        return NOT_SAID
    with path.open(encoding="utf-8", errors="replace") as log:
        return "; ".join(logged_kernels(lines, log)) or NOT_SAID
