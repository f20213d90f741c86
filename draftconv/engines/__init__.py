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
from draftconv.engines.hardware import ALIASES, UNREAD, Unread, spelled
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec, LoadVerdict
from draftconv.engines.serving import ServeCommand, ServeRequest
from draftconv.errors import UsageError, did_you_mean

__all__ = ["ENGINES", "Engine", "EngineSpec", "LoadVerdict", "ServeCommand", "ServeRequest", "parse_engine"]


def parse_engine(text: str, *, reading: bool = False) -> EngineSpec:
    """Read `ENGINE[@VERSION][:HARDWARE]`, e.g. `vllm`, `vllm@0.22`, `trtllm@1.3:b200`.

    Case makes no difference; an engine may be called by its title, hardware by another name of `hardware.ALIASES`.

    Args:
        reading: whether only a verdict is asked for, which one that is `Engine.only_named` has too.

    Raises:
        UsageError: unknown engine or hardware, a version that is not numbers and dots, or an engine that has
            verdicts only where more is asked for.
    """
    rest, _, typed = text.partition(":")
    called, _, version = rest.partition("@")
    engine = _engine(called)
    name = engine.name
    if engine.only_named and not reading:
        raise UsageError(
            f"{engine.title} is an engine for `inspect --for` alone",
            why="draftconv judges what it reads, and writes, quantizes, starts and measures nothing for it",
            cure=f"`draftconv inspect DRAFTER --for {name}`, or one of {', '.join(ENGINES)} here",
        )
    if version and not version.replace(".", "").isdigit():
        raise UsageError(f"{text}: {version} is not a version", cure=f"for example {name}@{engine.version}")
    if ":" not in text:
        return EngineSpec(name, version or engine.version)
    machine = spelled(typed)
    alias = ALIASES.get(machine)
    hardware = alias.hardware if alias else machine
    if hardware not in engine.hardware:
        raise _unread(text, engine, UNREAD[machine]) if machine in UNREAD else _unknown_hardware(text, engine, typed)
    return EngineSpec(name, version or engine.version, hardware, machine if alias else None)


def _engine(called: str) -> Engine:
    """The engine of this name or title.

    Raises:
        UsageError: there is none.
    """
    every = ENGINES.by_name
    names = {_plain_title(title): name for name, engine in every.items() for title in (engine.title, name)}
    name = called if called in every else names.get(_plain_title(called))
    if name is None:
        raise UsageError(
            f"unknown engine {called}",
            why=f"known: {', '.join(ENGINES)}, written ENGINE[@VERSION][:HARDWARE]",
            cure=did_you_mean(called.lower(), every),
        )
    return every[name]


def _plain_title(title: str) -> str:
    """Letters and digits alone: `TensorRT-LLM`, `tensorrt_llm` and `tensorrtllm` are one word."""
    return "".join(letter for letter in title.lower() if letter.isalnum())


def _unknown_hardware(text: str, engine: Engine, typed: str) -> UsageError:
    known = [*engine.hardware, *(name for name, alias in ALIASES.items() if alias.hardware in engine.hardware)]
    return UsageError(
        f"{text}: {engine.name} is not known to run on {typed or 'nothing'}",
        why=f"known hardware: {', '.join(engine.hardware)}",
        cure=did_you_mean(spelled(typed), known),
    )


def _unread(text: str, engine: Engine, unread: Unread) -> UsageError:
    nearest = f"; {engine.name}:{unread.nearest} is the nearest that was read: prove on your machine what it says"
    return UsageError(
        f"{text}: what {engine.title} multiplies on {unread.title} ({unread.chip}) is not known",
        why=unread.why,
        cure=f"give --for {engine.name} without hardware and 16-bit weights"
        + (nearest if unread.nearest in engine.hardware else ""),
    )
