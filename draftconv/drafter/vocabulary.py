"""The reduced draft vocabulary: `d2t` offsets, `t2d` mask, order, and what breaks them.

`d2t[i] = target_id(i) - i` (int64 offset) and `t2d[v]` true iff target token v can be
drafted: agreed by every producer; every engine adds the offset. Plain Python integers:
the maps are small, and reading them must not import numpy.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from draftconv import limits
from draftconv.checkpoint import TensorRef, show
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


Fault = Literal["d2t-absolute", "d2t-range", "d2t-duplicate", "d2t-dtype", "d2t-rounded", "d2t-t2d-mismatch"]


@dataclass(frozen=True, slots=True)
class MapReading:
    """What the stored maps say: the map if it is usable, and every fault found on the way."""

    map: VocabMap | None
    faults: tuple[tuple[Fault, str], ...]
    offsets: tuple[int, ...] = ()


def read_maps(d2t: TensorRef, t2d: TensorRef | None, vocab: int) -> MapReading:
    """Read and judge the vocabulary maps of a drafter whose target has `vocab` tokens.

    Raises:
        BadCheckpoint: they are longer than any vocabulary.
    """
    faults: list[tuple[Fault, str]] = []
    for ref in (d2t, t2d):
        if ref is not None:
            limits.VOCABULARY.check(
                max(math.prod(ref.shape), ref.nbytes // 8), f"{show(ref.name)} is {list(ref.shape)}"
            )
    offsets = _integers(d2t)
    if offsets is None:
        return MapReading(None, (("d2t-dtype", f"d2t is {d2t.dtype} and holds more than whole numbers"),))
    if d2t.dtype not in ("I64", "I32"):
        faults.append(("d2t-dtype", f"d2t is {d2t.dtype}; loaders expect int64"))
    marked = _marked_ids(t2d) if t2d is not None else None
    ids = tuple(i + offset for i, offset in enumerate(offsets))
    outside = [i for i, target in enumerate(ids) if not 0 <= target < vocab]
    repeated = len(ids) - len(set(ids))
    agrees = marked is not None and not repeated and marked == set(ids)
    if not agrees and _is_absolute(offsets, vocab, marked, broken=bool(outside or repeated)):
        values = f"first values {_first_values(offsets)} are themselves {len(offsets)} distinct ids"
        return MapReading(None, (*faults, ("d2t-absolute", values)), offsets)
    if not agrees and (evidence := _rounded(offsets, marked)):
        faults.append(("d2t-rounded", evidence))
    if outside:
        i = outside[0]
        detail = f"{len(outside)} draft ids map outside 0…{vocab - 1}, first: draft {i} → {ids[i]}"
        faults.append(("d2t-range", detail))
    elif repeated:
        faults.append(("d2t-duplicate", f"{repeated} draft ids share a target id with an earlier one"))
    usable = None if outside or repeated else VocabMap(ids, vocab)
    if usable and t2d is not None and (not agrees or math.prod(t2d.shape) != vocab):
        faults.append(("d2t-t2d-mismatch", _disagreement(usable, t2d, marked or set())))
    return MapReading(usable, tuple(faults), offsets)


def _is_absolute(offsets: Sequence[int], vocab: int, marked: set[int] | None, *, broken: bool) -> bool:
    """True when the values are distinct target ids themselves, stored where offsets belong.

    A map that is valid as offsets gives itself away by t2d or, without one, by having no two
    equal offsets: about n²/2V pairs share one in any real vocabulary of n out of V tokens,
    because frequent tokens come in runs.
    """
    if not offsets or len(set(offsets)) != len(offsets) or min(offsets) < 0 or max(offsets) >= vocab:
        return False
    if marked is not None and len(marked) == len(offsets):
        return marked == set(offsets)
    return broken or (marked is None and len(offsets) ** 2 >= 40 * vocab)


HALF_PRECISIONS = {"BF16": 8, "F16": 11}
"""Significant bits of the float types that a blanket cast rounds integers to."""

_SURE = 24
"""Bits of evidence: a chance of one in sixteen million that healthy offsets look rounded."""


def _rounded(offsets: Sequence[int], marked: set[int] | None) -> str | None:
    """Tell whether offsets have been through a half-precision float, and how that shows.

    With a t2d of as many tokens the true ascending offsets are known. Else the values speak:
    a rounded one has zeros below its highest 8 (BF16) or 11 (F16) bits.
    """
    if marked is not None and len(marked) == len(offsets):
        true = [target - i for i, target in enumerate(sorted(marked))]
        if true == list(offsets):
            return None
        for name, bits in HALF_PRECISIONS.items():
            if [_round(value, bits) for value in true] == list(offsets):
                wrong = sum(a != b for a, b in zip(true, offsets, strict=True))
                return f"{wrong} of {len(true)} offsets are those of t2d rounded to {name}"
    for name, bits in HALF_PRECISIONS.items():
        large = {abs(offset) for offset in offsets if abs(offset) > 1 << bits}
        zeros = sum(value.bit_length() - bits for value in large)
        if len(large) < 8 or zeros < _SURE or any(_round(value, bits) != value for value in large):
            continue
        if _fills_its_range(large, bits):
            return f"all {len(large)} distinct offsets above {1 << bits} have {bits} significant bits ({name})"
    return None


def _fills_its_range(values: set[int], bits: int) -> bool:
    """True unless the values share a coarser step: vocabularies cut in blocks are multiples of the block."""
    binades: dict[int, int] = {}
    for value in values:
        binades[value.bit_length()] = math.gcd(value, binades.get(value.bit_length(), 0))
    crowded = {b for b in binades if sum(value.bit_length() == b for value in values) >= 8}
    return all(binades[b] == 1 << (b - bits) for b in crowded)


def _round(value: int, bits: int) -> int:
    """The nearest integer with `bits` significant bits, ties to even."""
    excess = abs(value).bit_length() - bits
    if excess <= 0:
        return value
    quotient, rest = divmod(abs(value), 1 << excess)
    half = 1 << (excess - 1)
    quotient += rest > half or (rest == half and quotient & 1)
    return (quotient << excess) * (1 if value > 0 else -1)


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
    """The values as integers; None for another dtype, fractions, infinity or NaN."""
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


def _marked_ids(t2d: TensorRef) -> set[int]:
    """The target ids that the mask marks, whatever number type holds it."""
    data = t2d.read()
    size = max(1, len(data) // max(1, math.prod(t2d.shape)))
    if size == 1:
        return {token for token, flag in enumerate(data) if flag}
    return {i // size for i in range(0, len(data), size) if any(data[i : i + size])}


def _disagreement(mapped: VocabMap, t2d: TensorRef, marked: set[int]) -> str:
    if math.prod(t2d.shape) != mapped.vocab:
        return f"t2d is {t2d.dtype} {list(t2d.shape)}, the target has {mapped.vocab} tokens"
    missing = len(set(mapped.ids) - marked)
    return f"t2d marks {len(marked)} tokens, d2t reaches {len(mapped.ids)}; {missing} of them unmarked"


def _first_values(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:4])) + " …"
