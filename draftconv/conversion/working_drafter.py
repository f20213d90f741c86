"""A drafter on its way from one layout to another.

`WorkingDrafter` holds, for every canonical tensor, the operation that will produce it, together with
the facts as they will be and every change declared so far. A pass is a function from
`WorkingDrafter` to `WorkingDrafter`; none of them reads weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal as OneOf
from typing import NamedTuple

from draftconv.checkpoint import (
    FLOATS,
    Cast,
    Computed,
    Copy,
    Literal,
    PlannedTensor,
    Rows,
    TensorRef,
    nbytes,
    row_blocks,
)
from draftconv.checkpoint.text import show_some
from draftconv.drafter.describe import describe_value
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.vocabulary import VocabMap

BLOCK = 8 * 1024 * 1024
"""Source bytes held at a time."""

MAPS = ("d2t", "t2d")
CONFIG_KEY = "config.json: "
"""How a change begins that is of a key, not of a tensor."""

WEIGHT = ".weight"
NAMED = 16
"""Names that a line repeats; the record has them all."""

ACTIVATIONS = "activations"
"""What a record calls the rounding of inputs, which no fact of the drafter holds."""

QUANTIZED = "quantized by recipe "
"""How a record begins to tell of a weight that was rounded by a recipe."""

ChangeKind = OneOf["dropped", "added", "replaced", "requantized", "cast", "permuted", "pruned", "repaired", "fact"]


@dataclass(frozen=True, slots=True)
class Change:
    """One declared difference between the output and its source.

    `what` is a file name of the source (dropped), a canonical tensor, or a fact.
    """

    kind: ChangeKind
    what: str
    why: str


class ChangeGroup(NamedTuple):
    """Changes of one kind for one reason: a line for a person. `noun` is what they are of; empty for a single one."""

    kind: ChangeKind
    noun: str
    names: tuple[str, ...]
    why: str

    @property
    def what(self) -> str:
        """What was changed: a name, or how many and the first of them."""
        listed = show_some(self.names, NAMED)
        return f"{len(self.names)} {self.noun}: {listed}" if self.noun else listed


def grouped(changes: Sequence[Change]) -> tuple[ChangeGroup, ...]:
    """Changes of one kind for one reason together, in the order of their first."""
    groups: dict[tuple[ChangeKind, bool, str], list[str]] = {}
    for change in changes:
        groups.setdefault((change.kind, change.what.startswith(CONFIG_KEY), change.why), []).append(change.what)
    return tuple(_group(kind, keys, why, names) for (kind, keys, why), names in groups.items())


def _group(kind: ChangeKind, keys: bool, why: str, names: Sequence[str]) -> ChangeGroup:
    if len(names) == 1:
        return ChangeGroup(kind, "", tuple(names), why)
    if keys:
        return ChangeGroup(kind, "keys of config.json", tuple(name.removeprefix(CONFIG_KEY) for name in names), why)
    noun = "facts" if kind == "fact" else "weights" if all(name.endswith(WEIGHT) for name in names) else "tensors"
    return ChangeGroup(kind, noun, tuple(name.removesuffix(WEIGHT) for name in names), why)


@dataclass(frozen=True, slots=True)
class QuantizationFiles:
    """The word of quantized weights: `quantization_config` of config.json, and files beside it by name."""

    config: Mapping[str, object]
    sidecars: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class WorkingDrafter:
    """A drafter being changed; see the module's text.

    Attributes:
        packed: what is said of its weights, when some of `tensors` are parts of quantized ones.
    """

    drafter: Drafter
    facts: Facts
    tensors: Mapping[str, PlannedTensor]
    map: VocabMap | None
    changes: tuple[Change, ...] = ()
    order: tuple[int, ...] | None = None
    """Source row of each output row of lm_head, when they were permuted."""
    packed: QuantizationFiles | None = None

    def put(self, *tensors: PlannedTensor) -> WorkingDrafter:
        """Add or replace tensors by canonical name."""
        return replace(self, tensors={**self.tensors, **{tensor.name: tensor for tensor in tensors}})

    def without(self, *names: str) -> WorkingDrafter:
        return replace(self, tensors={name: t for name, t in self.tensors.items() if name not in names})

    def declare(self, kind: ChangeKind, what: str, why: str) -> WorkingDrafter:
        return replace(self, changes=(*self.changes, Change(kind, what, why)))

    def with_facts(self, why: str, **values: object) -> WorkingDrafter:
        """Change facts and declare each change."""
        facts = replace(self.facts, **values)  # type: ignore[arg-type]
        changes = tuple(
            Change(
                "fact",
                name,
                f"{describe_value(getattr(self.facts, name), none='absent')} → "
                f"{describe_value(value, none='absent')}: {why}",
            )
            for name, value in values.items()
            if getattr(self.facts, name) != value
        )
        return replace(self, facts=facts, changes=(*self.changes, *changes))


def start(drafter: Drafter) -> WorkingDrafter:
    """Everything as it is in the source; its leftovers are declared as dropped."""
    tensors = {name: copy_of(name, ref) for name, ref in drafter.tensors.items()}
    changes = tuple(Change("dropped", name, why) for name, why in drafter.dropped.items())
    usable = drafter.maps.map if drafter.maps and drafter.facts.reduced_vocab else None
    return WorkingDrafter(drafter, drafter.facts, tensors, usable, changes)


def copy_of(name: str, ref: TensorRef) -> PlannedTensor:
    return PlannedTensor(name, ref.dtype, ref.shape, Copy(ref))


def literal(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> PlannedTensor:
    return PlannedTensor(name, dtype, shape, Literal(data))


def zeros(name: str, dtype: str, shape: tuple[int, ...]) -> PlannedTensor:
    return literal(name, dtype, shape, bytes(nbytes(dtype, shape)))


def main_dtype(work: WorkingDrafter) -> str:
    """The dtype that holds most float bytes."""
    sizes: dict[str, int] = {}
    for tensor in work.tensors.values():
        if tensor.dtype in FLOATS:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__)


def cast_tensor(tensor: PlannedTensor, dtype: str) -> PlannedTensor:
    """The same tensor in another float dtype, rounded once from the source."""
    match tensor.operation:
        case Copy(ref) | Cast(ref, _):
            operation = Copy(ref) if ref.dtype == dtype else Cast(ref, dtype)
            return PlannedTensor(tensor.name, dtype, tensor.shape, operation)
        case Rows(ref, order, _):
            return PlannedTensor(tensor.name, dtype, tensor.shape, Rows(ref, order, dtype))
        case Literal(data):
            from draftconv.checkpoint import cast_bytes

            return literal(tensor.name, dtype, tensor.shape, cast_bytes(data, tensor.dtype, dtype, tensor.name))
        case Computed():
            raise _too_late(tensor)


def permute_rows(tensor: PlannedTensor, order: tuple[int, ...]) -> PlannedTensor:
    """The same tensor with row i taken from row `order[i]`."""
    shape = (len(order), *tensor.shape[1:])
    match tensor.operation:
        case Copy(ref):
            return PlannedTensor(tensor.name, tensor.dtype, shape, Rows(ref, order))
        case Cast(ref, dtype):
            return PlannedTensor(tensor.name, tensor.dtype, shape, Rows(ref, order, dtype))
        case Rows(ref, before, row_dtype):
            composed = tuple(before[row] for row in order)
            return PlannedTensor(tensor.name, tensor.dtype, shape, Rows(ref, composed, row_dtype))
        case Literal(data):
            size = len(data) // max(1, tensor.shape[0])
            return literal(tensor.name, tensor.dtype, shape, b"".join(data[r * size : (r + 1) * size] for r in order))
        case Computed():
            raise _too_late(tensor)


def _too_late(tensor: PlannedTensor) -> ValueError:
    return ValueError(f"{tensor.name} is computed: what it is made of is cast or permuted before")


def output_blocks(tensor: PlannedTensor) -> Iterator[bytes]:
    """The bytes of one planned tensor, block by block; an independent, plain twin of `execute`."""
    from draftconv.checkpoint import cast_bytes

    match tensor.operation:
        case Literal(data):
            yield data
        case Copy(ref):
            for start, stop in row_blocks(ref, BLOCK):
                yield ref.rows(start, stop)
        case Cast(ref, dtype):
            for start, stop in row_blocks(ref, BLOCK):
                yield cast_bytes(ref.rows(start, stop), ref.dtype, dtype, ref.name)
        case Rows(ref, order, dtype):
            step = max(1, BLOCK // max(1, ref.row_bytes))
            for start in range(0, len(order), step):
                rows = b"".join(ref.rows(row, row + 1) for row in order[start : start + step])
                yield cast_bytes(rows, ref.dtype, dtype, ref.name) if dtype and dtype != ref.dtype else rows
        case Computed(computation, part):
            yield bytes(computation.run()[part])


def content_hash(tensor: PlannedTensor) -> str:
    """SHA-256 of the bytes of one tensor, in hex."""
    digest = hashlib.sha256()
    for block in output_blocks(tensor):
        digest.update(block)
    return digest.hexdigest()


def map_tensors(mapped: VocabMap, *, t2d: bool) -> Iterable[PlannedTensor]:
    """d2t, and t2d if wanted, of a vocabulary map."""
    yield literal("d2t", "I64", (len(mapped.ids),), mapped.d2t())
    if t2d:
        yield literal("t2d", "BOOL", (mapped.vocab,), mapped.t2d())
