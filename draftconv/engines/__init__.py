"""Engines: what each server loads, mis-reads and refuses, one package per engine.

An engine is a package here that defines `ENGINE`; nothing else names it. Inside, `loading` is how it reads a
directory, `refusals`, `misreadings` and `notes` hold its rules next to their checks, `matching` is how it reads
the lists of quantized files, `modules` what its classes call linear layers, `shapes` and `dtypes` what its kernels
ask for, `captures` how it is told which layers, `layout` how drafters are written for it, `problems` what it makes
of broken ones, `serving` is the command.
What engines share stands beside the packages.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from draftconv.engines.base import EngineSpec, Verdict
from draftconv.engines.engine import Engine
from draftconv.engines.registry import ENGINES
from draftconv.engines.serving import ServeCommand, Start
from draftconv.errors import UsageError, did_you_mean

__all__ = ["ENGINES", "Engine", "EngineSpec", "ServeCommand", "Start", "Verdict", "parse_engine"]


def _discover() -> Mapping[str, Engine]:
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    found: list[Engine] = [module.ENGINE for module in modules if hasattr(module, "ENGINE")]
    return {engine.name: engine for engine in sorted(found, key=lambda engine: engine.order)}


ENGINES.update(_discover())


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
