"""SGLang as a judge: its own classes, checkpoint by checkpoint, and SGLang as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from truth.drafts import Makers, Reader
from truth.judges import Judge
from truth.sglang import engine, loader, matcher, quantized, served
from truth.store import Ask, Store
from truth.table import Part, Row, load


def rows(part: Part, makers: Makers, store: Store, ask: Ask, whole: bool) -> Iterator[Row]:
    match part:
        case "loader":
            return loader.rows(makers, ask)
        case "mutations":
            return loader.mutated(makers, ask)
        case "quantized-loader":
            return quantized.rows(makers, ask)
        case "matcher":
            return matcher.rows(makers, ask)
        case _:
            return served.rows(part, makers, store, ask, whole)


TABLE = Path(__file__).parents[3] / "docs" / "engine-truth" / "sglang.json"


def fixed() -> frozenset[tuple[Part, str]]:
    """Every checkpoint that is not quantized; of the others each set of rules once, each kind of declaration once."""
    chosen: dict[object, tuple[Part, str]] = {}
    for row in load(TABLE).rows:
        match row.part:
            case "quantized-loader":
                key: object = (row.part, row.observed, row.rules)
            case "matcher":
                key = (row.part, row.case.partition(", ")[0])
            case _:
                key = (row.part, row.case)
        chosen.setdefault(key, (row.part, row.case))
    return frozenset(chosen.values())


JUDGE = Judge(
    "sglang",
    "SGLang {version}, CPU",
    Reader("sglang", ("sglang",), ("portable",)),
    ("mutations", "loader", "quantized-loader", "matcher", *served.PARTS),
    Path(engine.__file__),
    engine.start,
    rows,
    fixed,
)
