"""Quantized weights beside which a server cannot compute in float32.

A drafter computes in its target's dtype (vLLM 0.32.0 config/speculative.py). A target whose config.json says
float32 is served in bfloat16 all the same (config/model.py; run): only `--dtype float32` makes it float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from draftconv.engines.hardware import CHIPS, Chip
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec, Evidence
from draftconv.quantization.recipes import FormatName

DTYPE = "--dtype"
FLOAT32 = frozenset({"float32", "float"})
"""What `DTYPE` calls it."""


@dataclass(frozen=True, slots=True)
class Float32Stop:
    """What stops an engine that is told to compute in float32; without `chips` it does so everywhere."""

    formats: tuple[FormatName, ...]
    says: str
    source: str
    evidence: Evidence
    chips: tuple[Chip, ...] = ()

    def holds(self, spec: EngineSpec, format_name: FormatName) -> bool:
        """True when it speaks of weights in this format, on the hardware named."""
        there = not self.chips or (spec.hardware is not None and CHIPS[spec.hardware] in self.chips)
        return format_name in self.formats and there


def float32_stop(spec: EngineSpec, format_name: FormatName) -> Float32Stop | None:
    """What stops an engine in float32 beside weights in this format; None where nothing is known to."""
    return next((stop for stop in ENGINES[spec.name].float32 if stop.holds(spec, format_name)), None)


def asks_float32(arguments: Sequence[str]) -> bool:
    """Whether a server is told to compute in float32; of several `--dtype` the last counts."""
    dtype = ""
    for argument, following in pairwise((*arguments, "")):
        name, equals, value = argument.partition("=")
        if name == DTYPE:
            dtype = value if equals else following
    return dtype in FLOAT32
