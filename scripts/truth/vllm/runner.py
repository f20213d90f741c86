"""Which layers each Model Runner captures: V2 is the default on GPUs, and what it reads of config.json needs none.

Both are asked by the functions of vLLM that read the ids. Kernels, graphs and whatever else is V2's own are not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.facts import Facts
from draftconv.engines import ENGINES, parse_engine
from truth.asking import Refusal
from truth.drafts import IDS, Change, Directory, Makers, read, target_of, target_path
from truth.store import Ask
from truth.table import Row
from truth.vllm import engine

SPEC = "vllm@0.33.0:h200"
"""Where V2 is the default. The functions are those of the vLLM that is asked."""

RUNNERS: Mapping[str, tuple[str, str]] = {
    "under Model Runner V2": ("vllm-taps", "captured_v2"),
    "should V2 fall back to V1": ("vllm-taps-fallback", "captured"),
}
"""What a row asks → the rule that speaks of it, and where `engine.Draft.built` has the layers."""


@dataclass(frozen=True, slots=True)
class Ids:
    """A drafter and the ids in its config.json; `facts`: where it was trained on others than its base."""

    base: str
    what: str
    change: Change = lambda d: d
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.base}: {self.what}"


OTHERS: Mapping[str, object] = {"boundaries": (1, 3, 4)}

CASES: tuple[Ids, ...] = tuple(
    case
    for base in ("llama-eagle3", "mla-eagle3")
    for case in (
        Ids(base, "ids as boundaries"),
        Ids(base, "ids of the layers after", lambda d: d.set(**{IDS: [1, 3, 4]})),
        Ids(base, "no ids", lambda d: d.unset(IDS).nest(**{IDS: None})),
        Ids(base, "no ids, trained on others", lambda d: d.unset(IDS).nest(**{IDS: None}), OTHERS),
        Ids(base, "nested ids", lambda d: d.unset(IDS).nest(**{IDS: [1, 3, 4]})),
        Ids(base, "nested ids, trained on them", lambda d: d.unset(IDS).nest(**{IDS: [1, 3, 4]}), OTHERS),
        Ids(base, "nested layer_ids", lambda d: d.unset(IDS).nest(**{IDS: None, "layer_ids": [1, 3, 4]})),
        Ids(
            base, "nested layer_ids, trained on them",
            lambda d: d.unset(IDS).nest(**{IDS: None, "layer_ids": [1, 3, 4]}), OTHERS,
        ),
        Ids(
            base, "nested ids beside others", lambda d: d.set(**{IDS: [1, 3, 4]}).nest(**{IDS: [2, 4, 5]}), OTHERS
        ),
    )
)  # fmt: skip


def names() -> frozenset[str]:
    """Names of the rows."""
    return frozenset(f"{case.name}, {runner}" for case in CASES for runner in RUNNERS)


def rows(makers: Makers, ask: Ask) -> Iterator[Row]:
    """One row per case and Model Runner."""
    for case in CASES:
        base = makers.base(case.base)
        with makers.made(case.change(Directory.open(base))) as path:
            facts = replace(read(base, case.base).facts, **case.facts)  # type: ignore[arg-type]
            verdict = ENGINES["vllm"].check(open_checkpoint(path), facts, target_of(case.base), parse_engine(SPEC))
            spoke = {line.rule.code for line in verdict.lines}
            for runner, (rule, key) in RUNNERS.items():
                name = f"{case.name}, {runner}"
                answer = ask("loader", name, (path, facts.boundaries), partial(observed, path, case.base, key, facts))
                mine = "mis-read: layers" if rule in spoke else "loads"
                theirs = str(answer["observed"])
                rules = (rule,) if rule in spoke else ()
                yield Row("loader", name, mine, theirs, mine == theirs, str(answer["detail"]), rules)


def observed(path: Path, base: str, key: str, facts: Facts) -> dict[str, Any]:
    """Whether a runner captures what the drafter was trained on."""
    draft = engine.look(path, target_path(base), load=False)
    if isinstance(draft, Refusal):
        return {"observed": "refused", "detail": draft.error}
    trained, captured = facts.boundaries, tuple(draft.built[key])
    word = "loads" if captured == trained else "mis-read: layers"
    return {"observed": word, "detail": f"captures {list(captured)}"}
