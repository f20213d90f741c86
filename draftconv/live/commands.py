"""The command of `draftconv serve`, as a measurement needs it: counts per request, no reuse of earlier prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from draftconv.live.client import Interface
from draftconv.live.launch import Launch

SERVE = (("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server", "--model"))
"""What a vLLM server's command starts with, before the name of the target."""


def measuring(
    argv: Sequence[str],
    files: Mapping[str, str],
    interface: Interface,
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
    told = {name: text + interface.settings for name, text in files.items()}
    added = (*interface.counting * drafts, *interface.measuring)
    return Launch((*argv, *added, *extra), told, interface.health, patience, python)


def without_server(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a vLLM server that an engine without a server takes too, the target as `--model`."""
    start = next(words for words in SERVE if tuple(argv[: len(words)]) == words)
    return ("--model", *_without(argv[len(start) :], "--host"))


def _without(words: Sequence[str], option: str) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word == option:
            next(rest)
        else:
            yield word
