"""Quantized copies of the trained fixtures, written the way a person would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftconv.api.quantize import Quantization, QuantizeOptions, quantize
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.shipped_files import recipes as shipped_directory
from draftconv.drafter.targets import Target, find_target
from draftconv.quantization.recipes import recipe_names
from draftconv.quantization.rounding import dequantize
from draftconv.quantization.weight_detection import find_quantized
from tests import opening
from tests.keywords import keywords
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

NAMES = tuple(sorted(path.name for path in (DATA / "drafters").iterdir()))
STATIC = frozenset({"fp8-tensor", "mxfp4", "nvfp4", "w4a8-awq"})
"""Recipes whose activations have scales that are measured on a trace."""
BY_GPTQ = frozenset({"w4a16-g128-all", "w4a16-g128-gptq", "w4a16-gptq"})
TWINS = frozenset({"w4a16-g128-all", "w4a16-g128-gptq"})
"""Recipes whose parts others have: groups, GPTQ and 8-bit heads. GPTQ takes seconds each time it is asked for."""
DISTINCT = tuple(name for name in recipe_names() if name not in TWINS)
CALIBRATED = STATIC | BY_GPTQ
"""Recipes that want a trace."""


def calibration(recorded: Recorded, name: str, recipe: str) -> Path | None:
    """The trace that a recipe is calibrated on, as short as it may be; None for one that wants none."""
    if recipe in BY_GPTQ:
        return recorded(name, count=8, length=64)  # a row per input at least
    return recorded(name, count=2, length=8) if recipe in STATIC else None


def nearest(recipe: str, place: Path) -> str:
    """A recipe without GPTQ, for what does not depend on how values are chosen: it wants no trace."""
    if recipe not in BY_GPTQ:
        return recipe
    text = shipped_directory().joinpath(f"{recipe}.yaml").read_text(encoding="utf-8")
    path = place / f"{recipe}-nearest.yaml"
    path.write_text(text.replace("rounding: gptq\n", ""), encoding="utf-8")
    return str(path)


def source(name: str) -> Path:
    return DATA / "drafters" / name


def family(name: str) -> str:
    return name.partition("-")[0]


def target(name: str) -> Target:
    found = find_target(str(DATA / "targets" / family(name)), None)
    assert found is not None
    return found


def options(name: str, recipe: str, *engines: str, trace: Path | None = None, **others: object) -> QuantizeOptions:
    asked = {"target": str(DATA / "targets" / family(name)), **others}
    return QuantizeOptions(recipe=recipe, engines=engines, calibrate=trace, **asked)  # type: ignore[arg-type]


def write(out: Path, name: str, recipe: str, *engines: str, trace: Path | None = None) -> Quantization:
    """Quantize; the trace is for the recipes that are calibrated, and given to no other."""
    calibrated = trace if recipe in CALIBRATED else None
    return quantize(source(name), out, **keywords(options(name, recipe, *engines, trace=calibrated)))


def read(path: Path, name: str) -> Drafter:
    return opening.read(path, target=target(name))


def names_what_is_kept(out: Path) -> None:
    """TensorRT-LLM takes what is not excluded for quantized, in both of the files that its releases read."""
    legacy = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    entry = json.loads((out / "config.json").read_text())["quantization_config"]
    for section, exclusions in ((legacy, "exclude_modules"), (entry, "ignore")):
        assert section["quant_algo"] not in (None, "MIXED_PRECISION")
        assert "quantized_layers" not in section
        assert {"model.fc", "lm_head"} <= set(section[exclusions])


def floats_of(path: Path, name: str) -> dict[str, torch.Tensor]:
    """Every quantized weight as the floats that it stands for, by module."""
    stored = find_quantized(read(path, name))
    return {module: dequantize(stored.load(module).quantized) for module in stored.modules}


Written = Callable[..., Path]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """`written(name, recipe, *engines)`: a quantized fixture, written once and never changed."""
    root = tmp_path_factory.mktemp("quantized")

    def once(name: str, recipe: str, *engines: str) -> Path:
        out = root / "-".join((name, recipe, *engines)).replace(":", "-")
        if not out.exists():
            write(out, name, recipe, *engines)
        return out

    return once
