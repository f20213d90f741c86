"""What a report says of the drafters that took part, and what is asked of each."""

from __future__ import annotations

import hashlib
import json

from draftconv.checkpoint import ByteCounter
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.drafter.describe import describe_value, facts_json
from draftconv.drafter.drafter import Drafter
from draftconv.layouts.drafter_reader import reading_line, reading_warnings
from draftconv.quantization.scheme import DTYPES, WeightDtype
from draftconv.report.model import ArmInfo
from draftconv.report.verdict import EXACT, GATES, Gate, How, Kind

TOLD = (
    "attention", "layers", "hidden", "vocab",
    "draft_vocab", "boundaries", "rope", "fusion", "feedback",
)  # fmt: skip
"""Facts that the report states of each arm, after its kind."""


PLAIN = "none"
"""The quantization, in words, of a drafter that has none."""


class ArmNames:
    """Hands out names; one that is taken gets a number: a second `out` is called `out (2)`."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, base: str) -> str:
        """`base`, or the next like it that nobody has."""
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base} ({number})"
        self._taken.add(name)
        return name


def bytes_of(drafter: Drafter) -> int:
    """Bytes of all its tensors."""
    return sum(ref.nbytes for ref in (*drafter.tensors.values(), *drafter.qparams.values()))


def about_arm(name: str, drafter: Drafter, tally: ByteCounter | None = None) -> ArmInfo:
    """What the report says of a drafter; all of its bytes are read once.

    Args:
        tally: told the bytes of each tensor.
    """
    facts = drafter.facts
    revision = drafter.checkpoint.revision
    return ArmInfo(
        name=name,
        source=drafter.checkpoint.name + (f"@{revision}" if revision else ""),
        layout=drafter.detection.layout,
        quantization=facts.quantization or PLAIN,
        content=content(drafter, tally),
        facts={"eagle": drafter.kind.name}
        | {fact: describe_value(getattr(facts, fact)) for fact in TOLD}
        | _reading_facts(drafter),
    )


def _reading_facts(drafter: Drafter) -> dict[str, str]:
    """How it was read, and what is doubtful about that."""
    doubts = "; ".join(reading_warnings(drafter))
    return {"read": reading_line(drafter)} | ({"doubtful": f"{drafter.checkpoint.name}: {doubts}"} if doubts else {})


def content(drafter: Drafter, tally: ByteCounter | None = None) -> str:
    """SHA-256 of what is computed and of the stored tensors: the same in every layout that stores the same bits.

    The vocabulary map counts as what it says (t2d follows from it), whatever dtype spells it.
    """
    digest = hashlib.sha256(json.dumps(facts_json(drafter.facts.computed), sort_keys=True).encode())
    if drafter.facts.reduced_vocab and drafter.maps and drafter.maps.map:
        digest.update(json.dumps(drafter.maps.map.ids).encode())
    for name, ref in sorted({**drafter.tensors, **drafter.qparams}.items()):
        if name not in ("d2t", "t2d"):
            digest.update(f"{name} {ref.dtype} {list(ref.shape)} {tensor_hash(ref)}\n".encode())
        if tally:
            tally.add(ref.nbytes)
    return digest.hexdigest()


def comparison_kind(reference: Drafter, candidate: Drafter) -> Kind:
    """What was done to a candidate: quantized, if the reference is not; else nothing that changes a weight."""
    return kind_against(reference.facts.quantization or PLAIN, candidate)


def kind_against(quantization: str, candidate: Drafter) -> Kind:
    """The same, where of the reference only its quantization in words is at hand."""
    if candidate.facts.quantization is None or quantization != PLAIN:
        return "conversion"
    from draftconv.quantization.weight_detection import find_quantized

    return bits(*(match.declared.dtype for match in find_quantized(candidate).parts))


def bits(*dtypes: WeightDtype) -> Kind:
    """Of weights of these dtypes together: what has some of 4 bits may lose what those of 4 bits may."""
    return "4-bit" if any(DTYPES[dtype].bits == 4 for dtype in dtypes) else "8-bit"


def gate(kind: Kind, margin: float | None, how: How = "replay") -> Gate:
    """What a candidate of this kind must keep: a margin that was asked for, else what the table asks."""
    match margin:
        case None:
            return GATES[kind, how]
        case 0:
            return EXACT
        case _:
            return Gate(margin)
