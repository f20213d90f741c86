"""Drafters broken on purpose: the conversion gate has to fail them live, as it does by replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from draftconv.engines.registry import DEFAULT
from draftconv.reference.accept_length import Counts
from draftconv.report.statistics import Pair
from draftconv.report.verdict import GATES, How, judge
from truth.drafts import IDS, Change, Directory, Makers, family, target_path, whole
from truth.replaying import prompts, replayed, traced
from truth.serving import Run, counts, histograms
from truth.store import Store
from truth.table import Row

LENGTH = 128


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break a base; nothing about it stops the load.

    Attributes:
        facts: what the engine then takes the drafter for, where draftconv may still know better.
    """

    base: str
    what: str
    change: Change
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.base}: {self.what}"


FAULTS: tuple[Fault, ...] = (
    Fault("llama-eagle3.1", "norm_output lost", lambda d: d.set(norm_output=False), {"feedback": "pre-norm"}),
    Fault("mla-eagle3.1", "norm_output lost", lambda d: d.set(norm_output=False), {"feedback": "pre-norm"}),
    Fault("llama-eagle3", "layer ids one too low", lambda d: d.set(**{IDS: [1, 3, 4]}), {"boundaries": (1, 3, 4)}),
    Fault("mla-eagle3", "layer ids one too low", lambda d: d.set(**{IDS: [1, 3, 4]}), {"boundaries": (1, 3, 4)}),
    Fault("llama-eagle3-reduced", "d2t all zero", lambda d: d.put("d2t", torch.zeros_like(d.tensors["d2t"]))),
)  # fmt: skip

FIXED = (FAULTS[0], FAULTS[2], FAULTS[4])
"""What every test run asks: each kind once."""


def rows(
    makers: Makers,
    store: Store,
    run: Run,
    chosen: Sequence[Fault] = FAULTS,
    *,
    semantics: str = DEFAULT,
    length: int = LENGTH,
) -> Iterator[Row]:
    for fault in chosen:
        path, base = makers.work / "controls" / fault.name.replace(": ", "-").replace(" ", "-"), makers.base(fault.base)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            whole(path, fault.change(Directory.open(base)))
        sound = live(base, fault.base, store, run, length)
        broken = live(path, fault.base, store, run, length)
        trace = traced(makers.work, family(fault.base), length, len(prompts()))
        mine = replayed(trace, fault.base, base, semantics=semantics)
        worse = replayed(trace, fault.base, path, fault.facts, semantics=semantics)
        predicted, observed = outcome(mine, worse, "replay"), outcome(sound, broken, "live")
        lengths = f"{_lengths(mine, worse)} by replay and {_lengths(sound, broken)} live"
        agrees = predicted == observed == "fail"
        yield Row("controls", fault.name, predicted, observed, agrees, f"accept length {lengths}")


def _lengths(sound: Sequence[Counts], broken: Sequence[Counts]) -> str:
    return " → ".join(f"{Counts.pooled(counts).accept_length:.3f}" for counts in (sound, broken))


def live(path: Path, name: str, store: Store, run: Run, length: int = LENGTH) -> tuple[Counts, ...]:
    """Counts of every request by the engine, in float32."""
    target, prompt_ids = target_path(name), prompts()

    def observe() -> list[tuple[int, ...]]:
        return histograms(run(path, target, prompt_ids, length))

    return counts(store.get(f"control {name}", (path, target, prompt_ids, length), observe))


def outcome(sound: Sequence[Counts], broken: Sequence[Counts], how: How) -> str:
    """The conversion gate's verdict on the broken drafter."""
    pairs = [Pair(str(n), str(n), "", *both) for n, both in enumerate(zip(sound, broken, strict=True))]
    again = [Pair(str(n), str(n), "", counts, counts) for n, counts in enumerate(sound)]
    return judge(pairs, GATES["conversion", how], how=how, aa=again if how == "live" else None).outcome
