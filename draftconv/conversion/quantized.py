"""What the record and the model card of a quantized output tell: enough to quantize again and get the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.conversion.rounding import Rounding
from draftconv.drafter.config import Config
from draftconv.engines.kernels import Deployment
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.quantization.exclusions import Selection
from draftconv.quantization.recipes import Recipe
from draftconv.quantization.scheme import GRIDS, RULES, InputScheme, Scheme, WeightScheme

if TYPE_CHECKING:
    from draftconv.quantization.deviation import Deviation


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of a quantization.

    Attributes:
        record: `quantization` of draftconv.json. `scheme`: in words.
        deviations: canonical weight → how far it went; filled while the output is written, for the card.
    """

    record: Mapping[str, object]
    scheme: str
    deviations: Mapping[str, Deviation]


def quantization_record(
    recipe: Recipe,
    deployment: Deployment,
    selection: Selection,
    rounding: Rounding,
    *,
    engines: Sequence[str],
    allow_a16: bool,
    tp: int,
    calibrate: Path | None,
) -> dict[str, object]:
    """The recipe as its file holds it, what became of it here, and what static scales were measured on.

    Args:
        engines: as they were resolved, such as `vllm@0.33.0:b200`. `calibrate`: the trace of a recipe with
            static scales; it is told by what it holds, not by where it lies.
    """
    inputs = deployment.scheme.inputs
    static = inputs is not None and not inputs.dynamic
    return {
        "recipe": {"name": recipe.name, "about": recipe.about}
        | _numbers(recipe.scheme)
        | {"format": recipe.format, "exclude": list(recipe.exclude)},
        "scheme": _numbers(deployment.scheme),
        "format": deployment.format,
        "style": deployment.style,
        "engines": list(engines),
        "allow_a16": allow_a16,
        "tp": tp,
        "backend": {"name": rounding.backend, "package": rounding.package, "smooths": rounding.smooths},
        "calibration": _calibration(calibrate) if (static or rounding.smooths) and calibrate is not None else None,
        "quantized": list(selection.quantized),
        "kept": dict(selection.kept),
    }


def recorded_weights(quantization: Config) -> WeightScheme | None:
    """How weights were rounded, by the `quantization` of a record; None where it does not tell."""
    section = quantization.section("scheme").section("weights")
    try:
        grid = next((name for name in GRIDS if name == section.text("grid")), None)
        if grid is None:
            return None
        row = GRIDS[grid]
        per = next(way for way in row.per if way == section.text("per"))
        rule = next(name for name in RULES if name == section.text("scale_rule"))
        dtype = next(name for name in row.scales if name == section.text("scale_dtype"))
        return WeightScheme(grid, per, rule, dtype, section.size("group"))
    except (StopIteration, BadCheckpoint, UsageError):
        return None  # a later version's, or somebody's own


def _numbers(scheme: Scheme) -> dict[str, object]:
    """`weights` and `activations` as in a recipe file."""
    weights = {key: value for key, value in asdict(scheme.weights).items() if value is not None}
    return {"weights": weights, "activations": _activations(scheme.inputs)}


def _activations(inputs: InputScheme | None) -> dict[str, object] | None:
    if inputs is None:
        return None
    return {"grid": inputs.grid, "per": inputs.per, "scale": "dynamic" if inputs.dynamic else "static"}


def _calibration(directory: Path) -> dict[str, object]:
    from draftconv.traces.trace import open_trace

    trace = open_trace(directory)
    about = trace.about
    return {
        "trace": f"sha256:{trace.digest}",
        "requests": len(trace.entries),
        "target": about.target,
        "revision": about.revision,
        "prompts": about.prompts,
    }
