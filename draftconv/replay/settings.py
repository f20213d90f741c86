"""What every replay checks before it begins, and what its report says of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import draftconv
from draftconv.checkpoint import show
from draftconv.errors import UsageError
from draftconv.replay.drafters import ReplaySettings
from draftconv.replay.options import DRAFT_SAMPLE_METHODS, Progress
from draftconv.replay.target_tables import semantics
from draftconv.report.model import RunInfo
from draftconv.traces.trace import DTYPES, Trace, TraceEntry, digest


class ReplayRun(ReplaySettings, Protocol):
    """What every replay is told."""

    @property
    def num_speculative_tokens(self) -> int: ...
    @property
    def draft_sample_method(self) -> str: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def command(self) -> tuple[str, ...]: ...


def refuse_impossible(options: ReplayRun) -> None:
    """Refuse what the command line would not let through.

    Raises:
        UsageError: a number below 1, or a choice that there is not.
    """
    for name, number in (("num-speculative-tokens", options.num_speculative_tokens), ("limit", options.limit)):
        if number is not None and number < 1:
            raise UsageError(f"--{name} {number}: too small", cure="give a number from 1")
    for name, value, known in (
        ("dtype", options.dtype, DTYPES),
        ("semantics", options.semantics, tuple(semantics())),
        ("draft-sample-method", options.draft_sample_method, DRAFT_SAMPLE_METHODS),
    ):
        if value not in known:
            raise UsageError(f"--{name} {show(value)}: unknown", cure=f"one of {', '.join(known)}")


def refuse_depth(depth: int, trace: Trace) -> None:
    """Refuse more drafted tokens than a trace keeps text for.

    The first draft of the last step is a counted token, the others lie beyond the end.

    Raises:
        UsageError: it keeps too little.
    """
    kept = trace.about.depth
    if depth > kept + 1:
        raise UsageError(
            f"--num-speculative-tokens {depth}: the trace keeps {kept} tokens beyond the end of each text, "
            f"{depth - 1} are needed",
            why="the last steps would be clipped, which lowers the accept length",
            cure=f"make a trace with --num-speculative-tokens {depth}, "
            f"or replay with --num-speculative-tokens {kept + 1}",
        )


def drawn_at(trace: Trace, options: ReplayRun) -> float | None:
    """The temperature that drafts are drawn at; None where the most likely token is drafted.

    Raises:
        UsageError: the text of the trace is greedy, and drafts would be drawn.
    """
    if options.draft_sample_method == "greedy":
        return None
    if (sampling := trace.about.sampling) is None:
        raise UsageError(
            "--draft-sample-method probabilistic: the text of the trace is greedy",
            why="at temperature 0 engines draft the most likely token, whatever they are told",
            cure="leave it out, or make the trace with `draftconv trace --temperature T`",
        )
    return sampling.temperature


def tokens_done(trace: Trace, entries: Sequence[TraceEntry], progress: Progress | None) -> Callable[[int], None] | None:
    """Tells `progress` how much of the text is replayed, when it is told the tokens of each request."""
    if progress is None:
        return None
    total, done = sum(entry.prompt + entry.counted + trace.about.depth for entry in entries), 0

    def add(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress("replaying", done, total)

    return add


def run_info(trace: Trace, entries: Sequence[TraceEntry], options: ReplayRun) -> RunInfo:
    """What a report says of a replay of some requests."""
    about = trace.about
    return RunInfo(
        how="replay",
        target=about.target + (f"@{about.revision}" if about.revision else ""),
        prompts=about.prompts,
        prompts_sha256=about.prompts_sha256,
        depth=options.num_speculative_tokens,
        version=draftconv.__version__,
        command=options.command,
        settings={
            "requests": str(len(entries)),
            "tokens": f"at most {about.max_tokens} per request",
            "sampling": "greedy" if about.sampling is None else str(about.sampling),
            "target": f"{about.dtype}, {about.made_by}",
            "drafts": options.draft_sample_method,
            "replay": f"{options.dtype} on {options.device}",
            "tables": f"as {options.semantics} takes them",
        },
        trace=digest(about, trace.tables, entries),
    )
