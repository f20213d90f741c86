"""vLLM as a judge: its parts, and what of them every test run asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from truth import controls, conversions, replaying
from truth.drafts import Makers
from truth.judges import Judge
from truth.store import Ask, Store
from truth.table import Part, Row
from truth.vllm import dtypes, engine, joined, loader, loader_cases, matcher, runner, twins
from truth.vllm.reader import READER


def rows(part: Part, makers: Makers, store: Store, ask: Ask, whole: bool) -> Iterator[Row]:
    match part:
        case "loader":
            return loader.rows(makers, ask)
        case "matcher":
            return matcher.rows(makers, ask)
        case "replay":
            return replaying.rows(makers, store, engine.run, length=replaying.LENGTH if whole else replaying.SHORT)
        case "conversions":
            return conversions.rows(makers, store, engine.run, None if whole else conversions.fixed(makers))
        case "quantized":
            return twins.rows(makers, store, twins.ALL if whole else twins.FIXED)
        case "controls":
            return controls.rows(makers, store, engine.run, controls.FAULTS if whole else controls.FIXED)
    raise ValueError(f"{part} is not asked of vLLM")


def fixed() -> frozenset[tuple[Part, str]]:
    """Each rule once, each format and each kind of spelling once."""
    cases = loader_cases.fixed() | dtypes.fixed() | joined.names() | runner.names()
    asked: set[tuple[Part, str]] = {("loader", case) for case in cases}
    return frozenset(asked | {("matcher", case) for case in matcher.fixed()})


JUDGE = Judge(
    "vllm",
    "vLLM {version}, CPU",
    READER,
    ("loader", "matcher", "replay", "controls", "conversions", "quantized"),
    Path(engine.__file__),
    engine.start,
    rows,
    fixed,
)
