"""Import torch, load a drafter, replay it on a trace: what `draftconv accept` cannot do without.

bare_replay.py TRACE DRAFTER
"""

from __future__ import annotations

import sys
from pathlib import Path

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.targets import Target
from draftconv.layouts.base import ReadOptions
from draftconv.layouts.reader import read_drafter
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.replay import replay
from draftconv.traces.trace import open_trace


def main(directory: Path, path: Path) -> int:
    """The requests that were replayed, at the largest K that the trace allows for, as `accept` does."""
    trace = open_trace(directory)
    about = trace.about
    hints = ReadOptions(target=Target(about.target, about.layers, hidden=about.hidden, vocab=about.vocab))
    arm = load_arm(path.name, read_drafter(open_checkpoint(path), hints), LoadSettings(trace.table))
    requests = (trace.read(entry, arm.boundaries) for entry in trace.entries)
    return sum(1 for _ in replay([arm], requests, arm.boundaries, depth=about.depth))


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), Path(sys.argv[2])))
