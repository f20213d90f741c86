"""Prove that an output is its source: every bit compared, every difference declared.

Both directories are opened afresh and read by their own layouts; nothing of the
conversion is reused. A difference passes only if it follows from the vocabulary maps of
both sides or is declared in a `draftconv.json` that belongs to the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from draftconv.api.convert import hints
from draftconv.api.provenance import Provenance, read_provenance
from draftconv.checkpoint import FLOATS, TensorRef, cast_bytes, open_checkpoint, row_blocks
from draftconv.drafter.boundaries import default_triple
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts, Taps
from draftconv.drafter.targets import find_target
from draftconv.layouts.reading import read_drafter

BLOCK = 8 * 1024 * 1024
Outcome = Literal["equal", "declared", "different"]
MAPS = ("d2t", "t2d")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor or fact, compared."""

    what: str
    outcome: Outcome
    how: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`."""

    tensors: tuple[Comparison, ...]
    facts: tuple[Comparison, ...]
    provenance: bool
    """A draftconv.json that belongs to the output was found."""

    @property
    def passed(self) -> bool:
        return all(row.outcome != "different" for row in (*self.tensors, *self.facts))


def verify(
    out: str | Path,
    against: str | Path,
    *,
    target: str | None = None,
    target_layers: int | None = None,
    layout: str | None = None,
    aux_convention: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Compare two drafters tensor by tensor and fact by fact.

    Args:
        out: the output. `against`: its source; `layout` and `aux_convention` are about the source.
        progress: called with the number of bytes compared so far.

    Raises:
        BadCheckpoint, NotADrafter: one of the two cannot be read.
    """
    goal = find_target(target, target_layers)
    result = read_drafter(open_checkpoint(out), hints(None, None, goal))
    provenance = read_provenance(result.checkpoint)
    if layout is None and provenance and provenance.source.text("confidence") == "given":
        layout = provenance.source.text("layout")
    source = read_drafter(open_checkpoint(against), hints(layout, aux_convention, goal))
    return Verification(
        tuple(_tensors(result, source, provenance, progress or (lambda _: None))),
        tuple(_facts(result.facts, source.facts, provenance)),
        provenance is not None,
    )


def _tensors(
    out: Drafter, source: Drafter, provenance: Provenance | None, progress: Callable[[int], None]
) -> Iterator[Comparison]:
    declared = _Declared(provenance)
    seen = 0
    for name, ref in source.tensors.items():
        seen += ref.nbytes
        if name in MAPS:
            continue
        mine = out.tensors.get(name)
        if mine is None:
            why = declared.find("dropped", name, source.names[name])
            yield Comparison(name, "declared" if why else "different", why or "missing from the output")
        else:
            yield _tensor(name, mine, ref, out, source, declared)
        progress(seen)
    for name in out.tensors:
        if name not in source.tensors and name not in MAPS:
            why = declared.find("added", name)
            yield Comparison(name, "declared" if why else "different", why or "not in the source")
    yield from _maps(out, source, declared)
    for name, why in source.dropped.items():
        yield Comparison(name, "declared", f"not part of the drafter: {why}")


@dataclass(frozen=True, slots=True)
class _Declared:
    provenance: Provenance | None

    def find(self, kind: str, *names: str) -> str | None:
        changes = self.provenance.changes if self.provenance else ()
        return next((c.why for c in changes if c.kind == kind and c.what in names), None)


def _tensor(
    name: str, mine: TensorRef, ref: TensorRef, out: Drafter, source: Drafter, declared: _Declared
) -> Comparison:
    for kind in ("replaced", "repaired"):
        if why := declared.find(kind, name):
            return Comparison(name, "declared", f"{kind}: {why}")
    order = _row_order(name, out, source)
    if mine.shape != ref.shape:
        return Comparison(name, "different", f"{list(mine.shape)} in the output, {list(ref.shape)} in the source")
    cast = mine.dtype != ref.dtype
    if cast and not (declared.find("cast", name) and {mine.dtype, ref.dtype} <= FLOATS):
        return Comparison(name, "different", f"{mine.dtype} in the output, {ref.dtype} in the source, undeclared")
    row = _first_unequal(mine, ref, order, cast=cast)
    if row is not None:
        return Comparison(name, "different", f"first in row {row}")
    how = [f"{ref.dtype} → {mine.dtype}, rounded to nearest even"] if cast else []
    how += ["rows follow the vocabulary map"] if order else []
    return Comparison(name, "declared" if how else "equal", ", ".join(how) or "every bit")


def _row_order(name: str, out: Drafter, source: Drafter) -> tuple[int, ...] | None:
    """Which source row each lm_head row must equal, when both sides map the same tokens in another order."""
    if name != "lm_head.weight" or not out.maps or not source.maps or not out.maps.map or not source.maps.map:
        return None
    ours, theirs = out.maps.map.ids, source.maps.map.ids
    if ours == theirs or sorted(ours) != sorted(theirs):
        return None
    row_of = {target: row for row, target in enumerate(theirs)}
    return tuple(row_of[target] for target in ours)


def _first_unequal(mine: TensorRef, ref: TensorRef, order: tuple[int, ...] | None, *, cast: bool) -> int | None:
    """First row of the output that is not what its source says."""
    for start, stop in row_blocks(mine, BLOCK):
        ours = mine.rows(start, stop) if mine.shape else mine.read()
        if order is None:
            theirs = ref.rows(start, stop) if ref.shape else ref.read()
        else:
            theirs = b"".join(ref.rows(row, row + 1) for row in order[start:stop])
        if cast:
            theirs = cast_bytes(theirs, ref.dtype, mine.dtype, ref.name)
        if ours != theirs:
            size = max(1, mine.row_bytes)
            return start + next(
                i for i in range(stop - start) if ours[i * size : i * size + size] != theirs[i * size : i * size + size]
            )
    return None


def _maps(out: Drafter, source: Drafter, declared: _Declared) -> Iterator[Comparison]:
    """d2t and t2d are compared by what they mean: the set of target tokens, in row order."""
    ours = out.maps.map if out.maps else None
    theirs = source.maps.map if source.maps else None
    reduced = out.facts.reduced_vocab or source.facts.reduced_vocab
    if not reduced:
        if (ours is None) != (theirs is None):
            yield Comparison("d2t and t2d", "declared", "the identity of a full vocabulary, which changes nothing")
        return
    if why := declared.find("repaired", "d2t"):
        yield Comparison("d2t and t2d", "declared", f"repaired: {why}")
    elif ours is None or theirs is None or sorted(ours.ids) != sorted(theirs.ids):
        yield Comparison("d2t and t2d", "different", "they reach other target tokens")
    elif ours.ids == theirs.ids:
        yield Comparison("d2t and t2d", "equal", "every draft id stands for the same token")
    else:
        yield Comparison("d2t and t2d", "declared", "the same tokens in another order, lm_head rows along with them")


def _facts(out: Facts, source: Facts, provenance: Provenance | None) -> Iterator[Comparison]:
    declared = _Declared(provenance)
    for item in fields(Facts):
        ours, theirs = getattr(out, item.name), getattr(source, item.name)
        if ours == theirs:
            yield Comparison(item.name, "equal", "")
        elif why := declared.find("fact", item.name) or _follows(item.name, ours, theirs):
            yield Comparison(item.name, "declared", why)
        else:
            yield Comparison(item.name, "different", f"{_word(ours)} in the output, {_word(theirs)} in the source")


def _follows(name: str, ours: object, theirs: object) -> str | None:
    """Differences that need no declaration."""
    match name, ours, theirs:
        case "boundaries", tuple(), Taps.DEFAULT:
            layers = ours[-1] + 3
            if default_triple(layers) == ours:
                return f"{list(ours)} is the default triple of a target with {layers} layers"
        case "boundaries", Taps.DEFAULT, tuple():
            return _follows(name, theirs, ours)
        case "vocab_order", "ascending" | "unordered", "ascending" | "unordered":
            return "the rows of lm_head and its map were permuted together"
    return None


def _word(value: object) -> str:
    return str(getattr(value, "value", value))
