"""What the record and the model card of a quantized output tell: enough to quantize again and get the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, UsageError
from draftconv.quantization.scheme import GRIDS, RULES, InputScheme, Scheme, WeightScheme

if TYPE_CHECKING:
    from draftconv.conversion.quantizing import Quantizing
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


def told_of(decided: Quantizing) -> Told:
    """What is told of this quantization."""
    return Told(_record(decided), str(decided.deployment.scheme), decided.deviations)


def _record(decided: Quantizing) -> dict[str, object]:
    """The recipe as its file holds it, what became of it here, and what static scales were measured on.

    Engines are told as they were resolved, such as `vllm@0.33.0:b200`; a trace by what it holds, not by where it lies.
    """
    recipe, deployment, selection, rounding = decided.recipe, decided.deployment, decided.selection, decided.rounding
    options = decided.asked.options
    calibrate = options.trace
    inputs = deployment.scheme.inputs
    static = inputs is not None and not inputs.dynamic
    return {
        "recipe": {"name": recipe.name, "about": recipe.about}
        | _numbers(recipe.scheme)
        | {"format": recipe.format, "exclude": list(recipe.exclude)},
        "scheme": _numbers(deployment.scheme),
        "format": deployment.format,
        "style": deployment.style,
        "engines": list(decided.deployments),
        "allow_a16": options.allow_a16,
        "tp": options.tp,
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
