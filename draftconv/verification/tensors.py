"""Every tensor of an output, beside what the source gives when its steps are made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from draftconv.checkpoint import Copy, PlannedTensor, TensorRef
from draftconv.conversion.working_drafter import MAPS, copy_of, output_blocks, permute_rows
from draftconv.drafter.drafter import SAME_WITHOUT, Drafter
from draftconv.drafter.names import canonical_name
from draftconv.verification.claims import Claims
from draftconv.verification.compared import ComparedItem
from draftconv.verification.quantized import QuantizedComparison
from draftconv.verification.remaking import Remade
from draftconv.verification.vocabulary import compare_maps, follows_map

HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Compared:
    """Both sides of a verification, and what the source becomes."""

    out: Drafter
    source: Drafter
    remade: Remade
    claims: Claims

    @property
    def mine(self) -> Mapping[str, TensorRef]:
        """Tensors of the output that are compared one by one; the maps are compared by what they mean."""
        left_out = {canonical_name(file): file for file, why in self.out.dropped.items() if why in SAME_WITHOUT}
        added = {name: self.out.checkpoint.tensors[left_out[name]] for name in left_out.keys() & self.wanted.keys()}
        return comparable(self.out) | added

    @property
    def wanted(self) -> Mapping[str, PlannedTensor]:
        """What they must be."""
        qparams = {} if self.remade.changes else {name: copy_of(name, ref) for name, ref in self.source.qparams.items()}
        return {name: t for name, t in {**qparams, **self.remade.work.tensors}.items() if name not in MAPS}


def comparable(drafter: Drafter) -> dict[str, TensorRef]:
    """Tensors by canonical name, without the vocabulary maps."""
    return {name: ref for name, ref in {**drafter.tensors, **drafter.qparams}.items() if name not in MAPS}


def compare_tensors(sides: Compared, progress: Callable[[int, int], None]) -> Iterator[ComparedItem]:
    """Compare all of them; `progress` is told the source's bytes that were compared, and all."""
    theirs = comparable(sides.source)
    mine, wanted = sides.mine, sides.wanted
    total, done = sum(ref.nbytes for ref in theirs.values()), 0
    covered: set[str] = set()
    if sides.out.facts.quantization or sides.source.facts.quantization:
        weights = QuantizedComparison.of(sides.out, sides.source, sides.remade, sides.claims)
        yield from weights.rows()
        for module in weights.modules:
            yield weights.compare(module)
            parts = weights.parts(module)
            covered |= parts
            done += sum(ref.nbytes for name, ref in theirs.items() if name in parts)
            progress(done, total)
    for name in dict.fromkeys((*theirs, *wanted, *mine)):
        if name in covered:
            continue
        yield _compare(name, mine.get(name), wanted.get(name), sides)
        done += theirs[name].nbytes if name in theirs else 0
        progress(done, total)
    yield from compare_maps(sides.out, sides.source, sides.remade, sides.claims)
    yield from _leftovers(sides.out, sides.source)


def _compare(name: str, mine: TensorRef | None, wanted: PlannedTensor | None, sides: Compared) -> ComparedItem:
    """One tensor that is no part of a quantized weight."""
    fault = _fault(name, mine, wanted, sides)
    if fault is None:
        return _alike(name, mine, wanted, sides)
    file = sides.source.names.get(name, name)
    return sides.claims.tensor(name, mine, file) or ComparedItem(name, "different", fault)


def _fault(name: str, mine: TensorRef | None, wanted: PlannedTensor | None, sides: Compared) -> str | None:
    source = sides.source.tensors.get(name)
    if wanted is None:
        if mine is None:
            return None
        return "not in the source" if source is None else "kept, and what draftconv.json asks for leaves it out"
    if mine is None:
        return "missing from the output"
    if mine.shape != wanted.shape:
        return f"{list(mine.shape)} in the output, {list(wanted.shape)} in the source"
    if mine.dtype != wanted.dtype:
        return f"{mine.dtype} in the output, {wanted.dtype} in the source, undeclared"
    row = first_unequal(mine, _in_order(name, wanted, sides))
    return None if row is None else f"first in row {row}"


def _alike(name: str, mine: TensorRef | None, wanted: PlannedTensor | None, sides: Compared) -> ComparedItem:
    """What is to be said of a tensor that is as it must be."""
    remade, file = sides.remade, sides.source.names.get(name, name)
    if mine is None or wanted is None:
        dropped = remade.why(name, "dropped") or remade.why(file, "dropped")
        return ComparedItem(name, "declared", dropped or "left out when it is made again")
    how = [
        f"{kind}: {why}" for kind in ("repaired", "replaced", "added") if (why := remade.why(name, kind)) is not None
    ]
    how += (
        [f"pruned, and the rows that stay are equal in every bit: {why}"] if (why := remade.why(name, "pruned")) else []
    )
    how += [cast] if (cast := remade.why(name, "cast")) else []
    how += ["rows follow the vocabulary map"] if _is_permuted(name, wanted, sides) else []
    if not how and not _is_copy(wanted, sides.source.tensors.get(name) or sides.source.qparams.get(name)):
        how = ["made again from the source"]
    return ComparedItem(name, "declared" if how else "equal", "; ".join(how) or "every bit")


def _is_copy(wanted: PlannedTensor, source: TensorRef | None) -> bool:
    """Whether these are the very bytes of the source."""
    match wanted.operation:
        case Copy(ref):
            return source is not None and (ref.file, ref.offset) == (source.file, source.offset)
        case _:
            return False


def _is_permuted(name: str, wanted: PlannedTensor, sides: Compared) -> bool:
    return name == HEAD and (
        sides.remade.why(HEAD, "permuted") is not None or _in_order(name, wanted, sides) is not wanted
    )


def _in_order(name: str, wanted: PlannedTensor, sides: Compared) -> PlannedTensor:
    """A tensor as it must be; the head in the order of the output's map, where that stands for the same tokens."""
    order = follows_map(sides.out, sides.remade) if name == HEAD else None
    return wanted if order is None else permute_rows(wanted, order)


def first_unequal(mine: TensorRef, expected: PlannedTensor) -> int | None:
    """First row of the output that is not what its source says."""
    size = max(1, mine.row_bytes)
    done = 0
    for theirs in output_blocks(expected):
        ours = mine.file.read(mine.offset + done, len(theirs))
        if ours != theirs:
            return next(i for i in range(done, done + len(theirs)) if ours[i - done] != theirs[i - done]) // size
        done += len(theirs)
    return None


def _leftovers(out: Drafter, source: Drafter) -> Iterator[ComparedItem]:
    """Tensors that are no part of the drafter: dropped ones are listed, the output may have no new ones."""
    for name, why in source.dropped.items():
        yield ComparedItem(name, "declared", f"not part of the drafter: {why}")
    for name, why in out.dropped.items():
        mine, theirs = (drafter.checkpoint.tensors.get(name) for drafter in (out, source))
        if mine is not None and why not in SAME_WITHOUT and not _same_bytes(mine, theirs):
            yield ComparedItem(name, "different", "a leftover that the source does not have")


def _same_bytes(mine: TensorRef, theirs: TensorRef | None) -> bool:
    if theirs is None or (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return False
    return first_unequal(mine, copy_of(theirs.name, theirs)) is None
