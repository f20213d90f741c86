"""Engines: what each server loads, mis-reads and refuses, one package per engine.

An engine is a package here that defines `ENGINE`, or one that another package brings (docs/engines.md); nothing else
names it. Inside, `loading` is how it reads a directory, `layout` how one is written for it and `aux_layers` which
layers of the target it captures; `refusals`, `misreadings` and `notes` hold its rules next to their checks, `problems`
what it makes of faults that every drafter can have; `quantized_modules` is how it reads the lists of quantized files
and `module_names` what its classes call linear layers; `kernels` holds what it can multiply, `shapes` and `dtypes` what
its kernels ask for; `serving` is the command, `live` how it is measured and `client` how its servers are asked,
`tracing` how it runs the target of a trace. What engines share stands beside the packages.
"""

from __future__ import annotations

from draftconv.engines.engine import Engine
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec, LoadVerdict
from draftconv.engines.serving import ServeCommand, ServeRequest
from draftconv.errors import UsageError, did_you_mean

__all__ = ["ENGINES", "Engine", "EngineSpec", "LoadVerdict", "ServeCommand", "ServeRequest", "parse_engine"]


def parse_engine(text: str) -> EngineSpec:
    """Read `ENGINE[@VERSION][:HARDWARE]`, e.g. `vllm`, `vllm@0.22`, `trtllm@1.3:b200`.

    Raises:
        UsageError: unknown engine or hardware, or a version that is not numbers and dots.
    """
    rest, _, hardware = text.partition(":")
    name, _, version = rest.partition("@")
    if name not in ENGINES:
        raise UsageError(
            f"unknown engine {name}",
            why=f"known: {', '.join(ENGINES)}, written ENGINE[@VERSION][:HARDWARE]",
            cure=did_you_mean(name, ENGINES),
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
