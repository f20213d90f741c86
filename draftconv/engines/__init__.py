"""Engines: what each server loads, mis-reads and refuses, one module per engine."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from draftconv.engines import sglang, trtllm, vllm
from draftconv.engines.base import Engine, EngineSpec, Verdict
from draftconv.errors import UsageError

__all__ = ["ENGINES", "Engine", "EngineSpec", "Verdict", "parse_engine"]

ENGINES: Mapping[str, Engine] = {e.name: e for e in (vllm.ENGINE, sglang.ENGINE, trtllm.ENGINE)}


def parse_engine(text: str) -> EngineSpec:
    """Read `ENGINE[@VERSION][:HARDWARE]`, e.g. `vllm`, `vllm@0.22`, `trtllm@1.3:b200`.

    Raises:
        UsageError: unknown engine or hardware, or a version that is not numbers and dots.
    """
    rest, _, hardware = text.partition(":")
    name, _, version = rest.partition("@")
    if name not in ENGINES:
        close = difflib.get_close_matches(name, ENGINES, n=1)
        raise UsageError(
            f"unknown engine {name}",
            why=f"known: {', '.join(ENGINES)}, written ENGINE[@VERSION][:HARDWARE]",
            cure=f"did you mean {close[0]}?" if close else "",
        )
    engine = ENGINES[name]
    if version and not version.replace(".", "").isdigit():
        raise UsageError(f"{text}: {version} is not a version", cure=f"for example {name}@{engine.version}")
    if ":" in text and hardware not in engine.hardware:
        raise UsageError(
            f"{text}: {name} is not known to run on {hardware or 'nothing'}",
            why=f"known hardware: {', '.join(engine.hardware)}",
        )
    return EngineSpec(name, version or engine.version, hardware or None)
