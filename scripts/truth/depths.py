"""Accept length as K grows: replay against a whole engine, the same prompts in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from draftconv.engines.registry import DEFAULT
from truth.drafts import FIXTURES, Makers, family, target_path
from truth.replaying import compare, prompts, replayed, traced
from truth.serving import Run, counts, histograms
from truth.store import Store
from truth.table import Row

LENGTH = 64
DEEPEST = 6
ALL = tuple((name, depth) for name in FIXTURES for depth in range(1, DEEPEST + 1))
FIXED = (("llama-eagle3.1", 1), ("mla-eagle3.1", DEEPEST))
"""What every test run asks: the ends, each kind of attention once."""


def rows(
    makers: Makers,
    store: Store,
    run: Run,
    chosen: Sequence[tuple[str, int]] = ALL,
    *,
    semantics: str = DEFAULT,
) -> Iterator[Row]:
    """One row per fixture and number of drafted tokens."""
    prompt_ids = prompts()
    for name, depth in chosen:
        path, target = makers.base(name), target_path(name)

        def observe(depth: int = depth, path: Path = path, target: Path = target) -> list[tuple[int, ...]]:
            return histograms(run(path, target, prompt_ids, LENGTH, depth=depth))

        observed = store.get(f"depth {name} {depth}", (path, target, prompt_ids, LENGTH, depth), observe)
        opened = traced(makers.work, family(name), LENGTH, len(prompt_ids), DEEPEST)
        predicted = replayed(opened, name, path, semantics=semantics, depth=depth)
        yield compare(f"{name}: {depth} drafted", predicted, counts(observed), part="depths")
