"""Quantized copies of the trained fixtures, written the way a person would."""

from __future__ import annotations

from pathlib import Path

from draftconv.api.convert import ConvertOptions
from draftconv.api.quantize import Quantization, QuantizeOptions, quantize
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target, find_target
from tests import opening
from tests.reference.test_fixtures import DATA

NAMES = tuple(sorted(path.name for path in (DATA / "drafters").iterdir()))
STATIC = frozenset({"fp8-tensor", "mxfp4", "nvfp4", "w4a8-awq"})
"""Recipes that are calibrated on a trace."""


def source(name: str) -> Path:
    return DATA / "drafters" / name


def family(name: str) -> str:
    return name.partition("-")[0]


def target(name: str) -> Target:
    found = find_target(str(DATA / "targets" / family(name)), None)
    assert found is not None
    return found


def options(name: str, recipe: str, *engines: str, trace: Path | None = None, **others: object) -> QuantizeOptions:
    convert = ConvertOptions(target=str(DATA / "targets" / family(name)))
    return QuantizeOptions(recipe, engines, calibrate=trace, convert=convert, **others)  # type: ignore[arg-type]


def write(out: Path, name: str, recipe: str, *engines: str, trace: Path | None = None) -> Quantization:
    return quantize(source(name), out, options(name, recipe, *engines, trace=trace))


def read(path: Path, name: str) -> Drafter:
    return opening.read(path, target=target(name))
