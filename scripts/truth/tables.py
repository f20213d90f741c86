"""Whose embedding and head a drafter is run with: replay's `--semantics` against a whole engine.

The trained fixtures store what their target has, so every drafter here has a table that differs from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from draftconv.checkpoint import open_checkpoint
from draftconv.engines import ENGINES, parse_engine
from draftconv.reference.accept_length import Counts
from draftconv.replay.target_tables import semantics as known_semantics
from truth.drafts import Directory, Makers, family, read, some, target_of, target_path, whole
from truth.replaying import compare, prompts, replayed, traced
from truth.serving import Run, counts, histograms
from truth.store import Store
from truth.table import Row

LENGTH = 64
TABLES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "embed_tokens.weight": lambda table: table.roll(1, 0),
    "lm_head.weight": lambda table: table + some(*table.shape) * table.std(),
}
"""File name of a table → how it is changed, so that less is accepted where it is used."""

NOTES: Mapping[tuple[str, str], str] = {("sglang", "embed_tokens.weight"): "sglang-embedding"}
"""Engine and table → the rule that says whose is used."""

ALL = tuple((name, table) for name in ("llama-eagle3", "llama-eagle3.1", "mla-eagle3") for table in TABLES)
FIXED = (("llama-eagle3", "embed_tokens.weight"),)


def rows(
    makers: Makers, store: Store, run: Run, chosen: Sequence[tuple[str, str]] = ALL, *, semantics: str
) -> Iterator[Row]:
    """One row per drafter and table; what the semantics of the engines would have it accept stands beside it."""
    prompt_ids = prompts()
    for name, table in chosen:
        path, target = _changed(makers, name, table), target_path(name)

        def observe(path: Path = path, target: Path = target) -> list[tuple[int, ...]]:
            return histograms(run(path, target, prompt_ids, LENGTH))

        observed = counts(store.get(f"table {name}", (path, target, prompt_ids, LENGTH), observe))
        opened = traced(makers.work, family(name), LENGTH, len(prompt_ids))
        told = {engine: replayed(opened, name, path, semantics=engine) for engine in known_semantics()}
        row = compare(f"{name}: {table} of its own", told[semantics], observed, part="tables")
        lengths = ", ".join(f"{engine} {Counts.pooled(its).accept_length:.3f}" for engine, its in told.items())
        yield replace(row, detail=f"{row.detail}; by semantics: {lengths}", rules=_rules(path, name, semantics, table))


def _rules(path: Path, name: str, engine: str, table: str) -> tuple[str, ...]:
    """The rule that says whose table is used, where `inspect` says it of this drafter."""
    verdict = ENGINES[engine].check(
        open_checkpoint(path), read(path, name).facts, target_of(name), parse_engine(engine)
    )
    return tuple(line.rule.code for line in verdict.lines if line.rule.code == NOTES.get((engine, table)))


def _changed(makers: Makers, name: str, table: str) -> Path:
    path = makers.work / "tables" / f"{name}-{table}"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        base = Directory.open(makers.base(name))
        whole(path, base.put(table, TABLES[table](base.tensors[table])))
    return path
