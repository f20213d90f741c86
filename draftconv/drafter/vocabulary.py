"""The reduced draft vocabulary: `d2t` offsets, `t2d` mask, order, and what breaks them.

`d2t[i] = target_id(i) - i` (int64 offset) and `t2d[v]` true iff target token v can be
drafted: agreed by every producer; every engine adds the offset. Plain Python integers:
the maps are small, and reading them must not import numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from draftconv.checkpoint import TensorRef
from draftconv.drafter.facts import VocabOrder

_INTEGERS = {"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "U16": "H", "U32": "I", "U64": "Q"}
_FLOATS = {"F64": "d", "F32": "f", "F16": "e"}


@dataclass(frozen=True, slots=True)
class VocabMap:
    """The draft vocabulary as absolute target ids: draft id i stands for `ids[i]`."""

    ids: tuple[int, ...]
    vocab: int

    @property
    def order(self) -> VocabOrder:
        """`full` when it is the identity over the whole vocabulary."""
        if len(self.ids) == self.vocab and all(i == target for i, target in enumerate(self.ids)):
            return "full"
        ascending = all(a < b for a, b in zip(self.ids, self.ids[1:], strict=False))
        return "ascending" if ascending else "unordered"

    def d2t(self) -> bytes:
        """Offsets as little-endian int64 [Vd]."""
        return struct.pack(f"<{len(self.ids)}q", *(target - i for i, target in enumerate(self.ids)))

    def t2d(self) -> bytes:
        """Mask as one byte per target token [V]."""
        mask = bytearray(self.vocab)
        for target in self.ids:
            mask[target] = 1
        return bytes(mask)

    def ascending(self) -> tuple[VocabMap, tuple[int, ...]]:
        """Return the map in ascending order and the row order of `lm_head` that goes with it."""
        order = tuple(sorted(range(len(self.ids)), key=self.ids.__getitem__))
        return VocabMap(tuple(self.ids[i] for i in order), self.vocab), order


Fault = Literal["d2t-absolute", "d2t-range", "d2t-duplicate", "d2t-dtype", "d2t-t2d-mismatch"]


@dataclass(frozen=True, slots=True)
class MapReading:
    """What the stored maps say: the map if it is usable, and every fault found on the way."""

    map: VocabMap | None
    faults: tuple[tuple[Fault, str], ...]
    offsets: tuple[int, ...] = ()


def read_maps(d2t: TensorRef, t2d: TensorRef | None, vocab: int) -> MapReading:
    """Read and judge the vocabulary maps of a drafter whose target has `vocab` tokens."""
    faults: list[tuple[Fault, str]] = []
    offsets = _integers(d2t)
    if offsets is None:
        return MapReading(None, (("d2t-dtype", f"d2t is {d2t.dtype} and holds fractions"),))
    if d2t.dtype not in ("I64", "I32"):
        faults.append(("d2t-dtype", f"d2t is {d2t.dtype}; loaders expect int64"))
    ids = tuple(i + offset for i, offset in enumerate(offsets))
    outside = [i for i, target in enumerate(ids) if not 0 <= target < vocab]
    repeated = len(ids) - len(set(ids))
    if (outside or repeated) and is_absolute(offsets, vocab):
        faults.append(
            ("d2t-absolute", f"first values {_few(offsets)} are themselves {len(offsets)} distinct ids")
        )
    elif outside:
        i = outside[0]
        faults.append(
            ("d2t-range", f"{len(outside)} draft ids map outside 0…{vocab - 1}, first: draft {i} → {ids[i]}")
        )
    elif repeated:
        faults.append(("d2t-duplicate", f"{repeated} draft ids share a target id with an earlier one"))
    usable = None if outside or repeated else VocabMap(ids, vocab)
    if usable and t2d is not None and t2d.read() != usable.t2d():
        faults.append(("d2t-t2d-mismatch", _disagreement(usable, t2d)))
    return MapReading(usable, tuple(faults), offsets)


def is_absolute(offsets: Sequence[int], vocab: int) -> bool:
    """True when the values are distinct target ids themselves, stored where offsets belong."""
    return len(set(offsets)) == len(offsets) and min(offsets) >= 0 and max(offsets) < vocab


def offset_twins(offsets: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Pairs of draft ids with equal offsets, spread over the vocabulary.

    TorchSpec's post-training pruning (read at 2026-04-28, 07-13 and 08-16) takes `lm_head`
    rows at the *offset* instead of the target id, so such rows are then bit-identical.
    """
    first: dict[int, int] = {}
    pairs = [(first[offset], i) for i, offset in enumerate(offsets) if first.setdefault(offset, i) != i]
    step = max(1, len(pairs) // limit)
    return pairs[::step][:limit]


def _integers(ref: TensorRef) -> tuple[int, ...] | None:
    data = ref.read()
    if code := _INTEGERS.get(ref.dtype):
        return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    if ref.dtype == "BF16":  # the high half of a float32
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    code = _FLOATS.get("F32" if ref.dtype == "BF16" else ref.dtype, "")
    if not code:
        return None
    values = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
    return tuple(int(v) for v in values) if all(float(v).is_integer() for v in values) else None


def _disagreement(mapped: VocabMap, t2d: TensorRef) -> str:
    if t2d.nbytes != mapped.vocab:
        return f"t2d is {t2d.dtype} {list(t2d.shape)}, the target has {mapped.vocab} tokens"
    stored = t2d.read()
    missing = sum(1 for target in mapped.ids if not stored[target])
    return f"t2d marks {sum(map(bool, stored))} tokens, d2t reaches {len(mapped.ids)}; {missing} of them unmarked"


def _few(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:4])) + " …"
