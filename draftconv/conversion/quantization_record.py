"""What the record and the model card of a quantized output tell: enough to quantize again and get the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.conversion.calibration import calibration_trace
from draftconv.conversion.options import QuantizeOptions
from draftconv.engines.deployed import weakest
from draftconv.engines.rules import Evidence
from draftconv.quantization.scheme import InputScheme, Scheme, recorded

if TYPE_CHECKING:
    from draftconv.conversion.quantization_plan import QuantizationPlan
    from draftconv.quantization.deviation import Deviation
    from draftconv.replay.gptq_files import WeightRecord


@dataclass(frozen=True, slots=True)
class QuantizationRecord:
    """What is told of a quantization.

    Attributes:
        record: `quantization` of draftconv.json. `scheme`: in words.
        deviations: canonical weight → how far it went; filled while the output is written, for the card.
        gptq: canonical weight → how GPTQ rounded it; filled before the output is written.
        measured: what was done with the inputs of a trace, in words.
        evidence: of what its engines multiply; None where none was named.
    """

    record: Mapping[str, object]
    scheme: str
    deviations: Mapping[str, Deviation]
    gptq: Mapping[str, WeightRecord]
    measured: tuple[str, ...] = ()
    evidence: Evidence | None = None

    def completed(self) -> dict[str, object]:
        """The record once the output is written: with how GPTQ rounded each weight, if it rounded any."""
        if not self.gptq:
            return dict(self.record)
        told = {
            name: {
                "damping": record.damping,
                "rows": record.rows,
                "error": float(f"{record.error:.4g}"),
                "nearest": float(f"{record.nearest:.4g}"),
            }
            for name, record in self.gptq.items()
        }
        return {**self.record, "gptq": told}


def quantization_record(decided: QuantizationPlan) -> QuantizationRecord:
    """What is told of this quantization."""
    gptq = decided.calibration.gptq.records if decided.calibration.gptq else {}
    deployments = decided.deployments.values()
    return QuantizationRecord(
        _record(decided),
        decided.deployment.numbers,
        decided.deviations,
        gptq,
        tuple(_measured(decided)),
        weakest(deployment.evidence for deployment in deployments) if deployments else None,
    )


def _measured(decided: QuantizationPlan) -> Iterator[str]:
    schemes = [part.scheme for part in decided.deployment.parts.values()]
    if decided.rounding.smooths:
        yield "inputs smoothed by AWQ"
    if any(scheme.rounding == "gptq" for scheme in schemes):
        yield "weights rounded by GPTQ"
    if any(scheme.has_static_inputs for scheme in schemes):
        yield "static activation scales"


def _record(decided: QuantizationPlan) -> dict[str, object]:
    """The recipe as its file holds it, what became of it here, and what static scales were measured on.

    Engines are told as they were resolved, such as `vllm@0.33.0:b200`; a trace by what it holds, not by where it lies.
    """
    recipe, deployment, selection, rounding = decided.recipe, decided.deployment, decided.selection, decided.rounding
    options = decided.requested.options
    return {
        "recipe": {"name": recipe.name, "about": recipe.about}
        | _numbers(recipe.scheme)
        | {"format": recipe.format, "exclude": list(recipe.exclude)}
        | _of_roles({role: _numbers(scheme) for role, scheme in recipe.roles.items()})
        | ({"may_stay": list(recipe.may_stay)} if recipe.may_stay else {}),
        "scheme": _numbers(deployment.scheme),
        "format": deployment.format,
        "style": deployment.style,
        **_of_roles(
            {
                role: {"scheme": _numbers(part.scheme), "format": part.format, "style": part.style}
                for role, part in deployment.roles.items()
            }
        ),
        "engines": list(decided.deployments),
        "allow_a16": options.allow_a16,
        "tp": options.tensor_parallel_size,
        "backend": {"name": rounding.backend, "package": rounding.package, "smooths": rounding.smooths},
        "calibration": _calibration(options) if rounding.calibrated else None,
        "quantized": list(selection.quantized),
        "kept": dict(selection.kept),
    }


def _of_roles(parts: Mapping[str, object]) -> dict[str, object]:
    """`roles`; nothing where no role has a scheme of its own, as in records before there were roles."""
    return {"roles": dict(parts)} if parts else {}


def _numbers(scheme: Scheme) -> dict[str, object]:
    """`weights`, `activations` and how values are rounded, as in a recipe file; of the last only what is unusual."""
    weights = {key: value for key, value in recorded(scheme.weights).items() if value is not None}
    rounding: dict[str, object] = {} if scheme.rounding == "nearest" else {"rounding": scheme.rounding}
    sequential: dict[str, object] = {"sequential": True} if scheme.sequential else {}
    return {"weights": weights, "activations": _activations(scheme.inputs)} | rounding | sequential


def _activations(inputs: InputScheme | None) -> dict[str, object] | None:
    if inputs is None:
        return None
    record = recorded(inputs)
    return record | {"scale": "dynamic" if record.pop("dynamic") else "static"}


def _calibration(options: QuantizeOptions) -> dict[str, object] | None:
    """What activations or weights were measured on; which half of it only where it was one."""
    if (trace := calibration_trace(options)) is None:
        return None
    about = trace.about
    half: dict[str, object] = {} if options.calibrate_on == "all" else {"on": options.calibrate_on}
    return {
        "trace": f"sha256:{trace.digest}",
        "requests": len(trace.entries),
        "target": about.target,
        "revision": about.revision,
        "prompts": about.prompts,
        **half,
    }
