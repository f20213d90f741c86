"""Replay's accept length against the engine's: the same prompts, float32 on both sides."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from draftconv.api.trace import TraceOptions, trace
from draftconv.engines.registry import DEFAULT
from draftconv.reference.accept_length import Counts
from draftconv.replay.load_arm import LoadSettings, load_arm
from draftconv.replay.run import run as replay
from draftconv.traces.trace import Trace, open_trace
from tests.keywords import keywords
from truth.drafts import DATA, FIXTURES, Makers, family, read, target_path
from truth.serving import DEPTH, Run, counts, histograms
from truth.store import Store
from truth.table import Part, Row

LENGTH = 256
"""Generated tokens per request."""
BOUNDARIES = (1, 2, 3, 4, 5, 6)
"""Those of all fixtures, and of fixtures that are fed one layer early or late."""
SHORT = 64
"""What every test run generates."""
EQUAL, POOLED, STEPS = 0.90, 0.005, 3000
"""Least share of requests with equal counts, largest difference of pooled accept length, fewest verify steps."""


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """The committed held-out prompts."""
    return tuple(map(tuple, json.loads((DATA / "prompts.json").read_text(encoding="utf-8"))))


def traced(work: Path, target: str, length: int, count: int, depth: int = DEPTH) -> Trace:
    """The target's own text by transformers in float32, and its states: nothing of the engine's."""
    path = work / "traces" / f"{target}-{length}-{count}-{depth}"
    if not path.exists():
        options = TraceOptions(
            boundaries=BOUNDARIES, dtype="float32", device="cpu", batch=32, max_tokens=length, ignore_eos=True,
            num_speculative_tokens=depth, limit=count,
        )  # fmt: skip
        partial = path.with_name(f"{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        trace(DATA / "targets" / target, DATA / "prompts.json", partial, **keywords(options))
        partial.replace(path)
    return open_trace(path)


def replayed(
    opened: Trace,
    name: str,
    path: Path,
    facts: Mapping[str, object] = MappingProxyType({}),
    *,
    semantics: str = DEFAULT,
    depth: int = DEPTH,
) -> tuple[Counts, ...]:
    """The counts of every request, by replay in float32; `facts` are taken for other than the files say."""
    drafter = read(path, name)
    drafter = replace(drafter, facts=replace(drafter.facts, **facts))  # type: ignore[arg-type]
    arm = load_arm(name, drafter, LoadSettings(cache(opened.table), semantics))
    return tuple(record.counts for record in replay(opened, opened.entries, arm, [], depth=depth).records)


def compare(
    case: str, predicted: Sequence[Counts], observed: Sequence[Counts], steps: int = 0, part: Part = "replay"
) -> Row:
    """By the gate of this part."""
    ours, theirs = Counts.pooled(predicted), Counts.pooled(observed)
    equal = sum(mine == other for mine, other in zip(predicted, observed, strict=True))
    apart = theirs.accept_length / ours.accept_length - 1
    agrees = equal >= EQUAL * len(predicted) and abs(apart) <= POOLED and theirs.steps >= steps
    return Row(
        part,
        case,
        f"{ours.accept_length:.4f} ({ours.steps} steps, {ours.accepted} accepted)",
        f"{theirs.accept_length:.4f} ({theirs.steps} steps, {theirs.accepted} accepted)",
        agrees,
        f"{equal} of {len(predicted)} requests equal, pooled {apart:+.3%}",
    )


def rows(makers: Makers, store: Store, run: Run, *, length: int = LENGTH, semantics: str = DEFAULT) -> Iterator[Row]:
    """One row per fixture; with less than the whole length the number of steps is not asked for."""
    prompt_ids = prompts()
    for name in FIXTURES:
        path, target = makers.base(name), target_path(name)

        def observe(path: Path = path, target: Path = target) -> list[tuple[int, ...]]:
            return histograms(run(path, target, prompt_ids, length))

        observed = store.get(f"replay {name}", (path, target, prompt_ids, length), observe)
        opened = traced(makers.work, family(name), length, len(prompt_ids))
        predicted = replayed(opened, name, path, semantics=semantics)
        yield compare(name, predicted, counts(observed), STEPS if length == LENGTH else 0)
