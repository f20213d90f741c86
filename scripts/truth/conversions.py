"""Every spelling of a trained drafter, converted for an engine, drafts the same tokens as every other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftconv.api.convert import ConvertOptions, prepare
from draftconv.errors import Refused
from draftconv.layouts import writable
from truth.asking import Refusal
from truth.drafts import DATA, FIXTURES, Makers, family, target_path
from truth.producers import spelled, spellings
from truth.replaying import prompts
from truth.serving import Run
from truth.store import Store, digest
from truth.table import Row

PROMPTS, LENGTH = 8, 48


@dataclass(frozen=True, slots=True)
class Spelling:
    """A fixture on its way to an engine: the layout it starts from, or the one it is read in as it is."""

    name: str
    layout: str
    how: str
    path: Path


def all_spellings(makers: Makers) -> Iterator[Spelling]:
    """Producers' own files, draftconv's other layouts, and what the engine reads without a conversion."""
    reader = makers.reader
    for name, layout in spellings():
        source = spelled(makers.work, name, layout)
        yield Spelling(name, layout, "converted", makers.converted(source, name, reader.layout))
    for name in FIXTURES:
        source = DATA / "drafters" / name
        for layout in writable():
            if layout != reader.layout and _fits(source, name, layout):
                exported = makers.converted(source, name, layout)
                yield Spelling(name, layout, "there and back", makers.converted(exported, name, reader.layout))
                if layout in reader.unconverted:
                    yield Spelling(name, layout, "as it is", exported)


def _fits(source: Path, name: str, layout: str) -> bool:
    try:
        prepare(source, ConvertOptions(to=layout, target=str(target_path(name))))
    except Refused:
        return False
    return True


def drafted(path: Path, name: str, store: Store, run: Run, dtype: str = "bfloat16") -> dict[str, Any]:
    """What a whole engine does with a drafter: counts of every step, and digests of drafts and text."""
    target, prompt_ids = target_path(name), prompts()[:PROMPTS]

    def observe() -> dict[str, Any]:
        ran = run(path, target, prompt_ids, LENGTH, dtype)
        if isinstance(ran, Refusal):
            return {"refused": ran.error}
        return {
            "steps": sum(map(sum, ran.histograms)),
            "accepted": sum(n * steps for histogram in ran.histograms for n, steps in enumerate(histogram)),
            "each": digest(ran.steps or ran.histograms),
            "drafts": digest(ran.drafts),
            "text": digest(ran.tokens),
        }

    answer: dict[str, Any] = store.get(f"drafted {family(name)}", (path, target, prompt_ids, LENGTH, dtype), observe)
    return answer


def summary(answer: dict[str, Any]) -> str:
    if "refused" in answer:
        return "refused"
    return f"{answer['steps']} steps, {answer['accepted']} accepted, drafts {answer['drafts'][:8]}"


def fixed(makers: Makers) -> list[Spelling]:
    """What every test run asks: each layout once, and what the engine reads as it is."""
    chosen: dict[tuple[str, str], Spelling] = {}
    for spelling in all_spellings(makers):
        chosen.setdefault((spelling.layout, spelling.how), spelling)
    return list(chosen.values())


def rows(
    makers: Makers, store: Store, run: Run, chosen: Sequence[Spelling] | None = None, dtype: str = "bfloat16"
) -> Iterator[Row]:
    for spelling in all_spellings(makers) if chosen is None else chosen:
        expected = drafted(makers.base(spelling.name), spelling.name, store, run, dtype)
        answer = drafted(spelling.path, spelling.name, store, run, dtype)
        case = f"{spelling.name}: {spelling.layout}, {spelling.how}"
        yield Row(
            "conversions", case, summary(expected), summary(answer), expected == answer, str(answer.get("refused", ""))
        )
