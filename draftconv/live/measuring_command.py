"""The command of `draftconv serve`, as a measurement needs it: counts per request, no reuse of earlier prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from draftconv.engines.live import Live
from draftconv.live.launch import Launch


def measuring(
    argv: Sequence[str],
    files: Mapping[str, str],
    live: Live,
    extra: Sequence[str],
    *,
    patience: float,
    python: Path | None,
    drafts: bool = True,
) -> Launch:
    """A server of this kind that counts.

    Args:
        argv, files: as `draftconv serve` prints them. `extra`: arguments of the user, which come last and so win.
        drafts: whether the command has a drafter.
    """
    contents = {name: text + live.settings for name, text in files.items()}
    added = (*live.counting * drafts, *live.measuring)
    return Launch((*argv, *added, *extra), contents, live.health, patience, python)
