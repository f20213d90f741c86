"""What is asked of SGLang as a whole: the parts of its table that a loader alone cannot answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from truth import controls, conversions, depths, replaying, tables
from truth.controls import Fault
from truth.drafts import IDS, Makers
from truth.sglang.answering import run
from truth.store import Ask, Store, digest
from truth.table import Part, Row

NAME = "sglang"
"""Of the engine, and of its semantics in replay."""
PARTS: tuple[Part, ...] = ("replay", "controls", "conversions", "depths", "tables")
HERE = Path(__file__).parent
ASKING = (HERE / "answering.py", *sorted((HERE / "serving").rglob("*.py")))
"""The files that hold how it is asked."""
DTYPE = "float32"
"""Of conversions: SGLang puts requests together as they come, and in 16 bits the shape of a batch changes low bits."""

FAULTS: tuple[Fault, ...] = (
    Fault("llama-eagle3.1", "norm_output lost", lambda d: d.set(norm_output=False), {"feedback": "pre-norm"}),
    Fault("mla-eagle3.1", "norm_output lost", lambda d: d.set(norm_output=False), {"feedback": "pre-norm"}),
    Fault("llama-eagle3.1", "fc_norm lost", lambda d: d.set(fc_norm=False).drop("fc_norm")),
    Fault("mla-eagle3.1", "fc_norm lost", lambda d: d.set(fc_norm=False).drop("fc_norm")),
    Fault("llama-eagle3", "layer ids one too low", lambda d: d.nest(**{IDS: [0, 2, 3]}), {"boundaries": (1, 3, 4)}),
    Fault("llama-eagle3", "layer ids one too high", lambda d: d.nest(**{IDS: [2, 4, 5]}), {"boundaries": (3, 5, 6)}),
    Fault("mla-eagle3", "layer ids one too high", lambda d: d.nest(**{IDS: [3, 5, 6]}), {"boundaries": (3, 5, 6)}),
    Fault("llama-eagle3-reduced", "d2t all zero", lambda d: d.put("d2t", d.tensors["d2t"] * 0)),
)  # fmt: skip
FIXED = (FAULTS[0], FAULTS[4], FAULTS[7])
"""What every test run asks: each kind once."""


def rows(part: Part, makers: Makers, store: Store, _ask: Ask, whole: bool) -> Iterator[Row]:
    """See `judges.PartRows`."""
    mine = Store(store.directory, f"{store.version} {digest(*ASKING)}", ASKING[0])
    match part:
        case "replay":
            length = replaying.LENGTH if whole else replaying.SHORT
            return replaying.rows(makers, mine, run, length=length, semantics=NAME)
        case "controls":
            return controls.rows(makers, mine, run, FAULTS if whole else FIXED, semantics=NAME)
        case "conversions":
            return conversions.rows(makers, mine, run, None if whole else conversions.fixed(makers), DTYPE)
        case "depths":
            return depths.rows(makers, mine, run, depths.ALL if whole else depths.FIXED, semantics=NAME)
        case "tables":
            return tables.rows(makers, mine, run, tables.ALL if whole else tables.FIXED, semantics=NAME)
    raise ValueError(f"{part} is not asked of the whole engine")
