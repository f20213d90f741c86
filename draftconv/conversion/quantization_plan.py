"""A quantization that is decided: what will run where, which weights, who rounds them, what they are calibrated on.

Everything is decided without reading weights, so that what cannot be served is refused at once; only what a recipe
wants measured is measured here, on a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftconv.conversion.backend_choice import SMOOTHED, BackendChoice, RolePart, choose_backend
from draftconv.conversion.calibration import Calibration, calibrate, calibration_trace
from draftconv.conversion.options import QuantizeOptions
from draftconv.conversion.quantized_output import OutputPart, QuantizedOutput, spelled
from draftconv.conversion.request import ConversionRequest
from draftconv.conversion.working_drafter import QUANTIZED
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, EngineSpec, parse_engine
from draftconv.engines.deployed import Deployment
from draftconv.engines.deployment import resolve, widest
from draftconv.engines.shapes import shape_faults
from draftconv.errors import Refused, UsageError
from draftconv.options import several
from draftconv.quantization.exclusions import WEIGHT, Selection, refuse_nearest_head, select
from draftconv.quantization.recipes import MAIN, FormatName, Recipe, find_recipe
from draftconv.quantization.scheme import Scheme

if TYPE_CHECKING:
    from draftconv.quantization.deviation import Deviation
    from draftconv.quantization.quantized_weights import QuantizedWeights

FEW = 3
"""Sizes that a refusal names; the rest are counted."""


@dataclass(frozen=True, slots=True)
class QuantizationRequest:
    """A quantization as it is asked for: its options, and the recipe and the engines that they name."""

    options: QuantizeOptions
    recipe: Recipe
    specs: tuple[EngineSpec, ...]

    @classmethod
    def of(cls, options: QuantizeOptions) -> QuantizationRequest:
        """Look up what the options name.

        Raises:
            UsageError: unknown recipe or engine.
        """
        return cls(options, find_recipe(options.recipe), tuple(map(parse_engine, several(options.engines))))


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """A quantization that is decided.

    Attributes:
        deployment: what is written. `deployments`: engine as it was named → what will run there; empty when none was.
        rounding: who rounds the weights, and what is not as the recipe says.
        faults: sizes for which an engine leaves the kernel that it would have taken, in words.
        deviations: canonical weight → how far it went; filled while the output is written.
        stored: the quantized weights of the source; None where it had none.
    """

    requested: QuantizationRequest
    selection: Selection
    deployment: Deployment
    deployments: Mapping[str, Deployment]
    rounding: BackendChoice
    output: QuantizedOutput
    calibration: Calibration
    faults: tuple[str, ...]
    deviations: dict[str, Deviation]
    stored: QuantizedWeights | None = None

    @property
    def recipe(self) -> Recipe:
        return self.requested.recipe

    @property
    def specs(self) -> tuple[EngineSpec, ...]:
        """Who has to read the weights; none is every engine that reads the format."""
        return self.requested.specs

    def part(self, name: str) -> RolePart:
        """How a quantized weight is rounded, by its canonical name."""
        return self.rounding.parts[self.selection.roles[name]]

    def why(self, name: str) -> str:
        """What the record tells of a quantized weight."""
        by = f"; rounded by {self.rounding.package}" if self.rounding.package else ""
        return f"{QUANTIZED}{self.recipe.name}: {self.part(name).scheme}{by}"

    @property
    def unpacked(self) -> tuple[str, ...]:
        """Weights that were quantized in the source and are floats now, because the recipe keeps them."""
        names = (f"{module}{WEIGHT}" for module in self.stored.modules) if self.stored else ()
        return tuple(name for name in names if name not in self.selection.quantized)

    @property
    def request(self) -> ConversionRequest:
        """The conversion that it is part of; its layout follows from the engines, and is one they share if several."""
        layouts = {ENGINES[spec.name].layout for spec in self.specs}
        to = layouts.pop() if len(layouts) == 1 else None
        return ConversionRequest(replace(self.requested.options.convert, to=to), self.specs, self)


def plan_quantization(
    drafter: Drafter, target: Target | None, requested: QuantizationRequest, *, calibrated: bool = True
) -> QuantizationPlan:
    """Decide a quantization, and calibrate it where the recipe is calibrated.

    Args:
        calibrated: without, nothing is measured and no trace is asked for: sizes and kernels are known, and nothing can
            be written.

    Raises:
        Refused: an engine has no form of the recipe or no kernel for the drafter's sizes, the recipe rounds
            the head to the nearest of 4 bits, the drafter is quantized already, or the backend does not have the
            scheme.
        UsageError: several engines that need different files, no calibration, a backend whose package is missing
            or does not start.
    """
    options, recipe, specs = requested.options, requested.recipe, requested.specs
    stored = _stored_weights(drafter, options)
    deployments = {str(spec): resolve(recipe, spec, allow_a16=options.allow_a16, facts=drafter.facts) for spec in specs}
    deployment = _shared_deployment(deployments) if deployments else widest(recipe, drafter.facts)
    kept = recipe.keeping(deployment.kept)
    selection = select(kept, drafter.facts)
    if not options.force:
        refuse_nearest_head(kept, selection)
    faults = tuple(_slower_kernels(specs, deployment, drafter, selection, options.tensor_parallel_size))
    if calibrated:
        _refuse_uncalibrated(deployment, options)
    rounding = choose_backend(options.backend, recipe, deployment, options.trace, options.device)
    deployment = _rounded(deployment, rounding)
    output = _output_of(deployment, drafter, selection, specs, target)
    trace = calibration_trace(options) if calibrated and rounding.calibrated else None
    calibration = calibrate(drafter, stored, selection, rounding, trace, target)
    rounding = replace(rounding, notes=(*rounding.notes, *calibration.notes))
    return QuantizationPlan(
        requested,
        selection,
        deployment,
        deployments,
        rounding,
        output,
        calibration,
        faults,
        deviations={},
        stored=stored,
    )


def _stored_weights(drafter: Drafter, options: QuantizeOptions) -> QuantizedWeights | None:
    """The quantized weights of a source that is quantized already.

    Raises:
        Refused: they are there and nobody asked to quantize them again, or no format that is known.
        UsageError: an option is about them and there are none.
    """
    if drafter.facts.quantization is None:
        if options.requantize:
            raise UsageError("--requantize is about quantized drafters, this one is not quantized")
        if options.convert.from_format:
            raise UsageError("--from-format is about quantized drafters, this one is not quantized")
        return None
    if not options.requantize:
        raise Refused(
            f"this drafter is quantized already: {drafter.facts.quantization}",
            why="errors of both would add up",
            cure="quantize the 16-bit drafter that it was made from, repack it with `draftconv convert --pack`, "
            "or add --requantize to do it all the same",
        )
    from draftconv.quantization.weight_detection import find_quantized

    return find_quantized(drafter, options.convert.from_format)


def _slower_kernels(
    specs: Sequence[EngineSpec], deployment: Deployment, drafter: Drafter, selection: Selection, tp: int
) -> Iterator[str]:
    """Sizes that an engine runs with another kernel than it would have taken.

    Raises:
        Refused: sizes that an engine does not run at all.
    """
    parts = {role: [name for name, its in selection.roles.items() if its == role] for role in deployment.parts}
    for spec in specs:
        faults = tuple(
            dict.fromkeys(
                fault
                for role, names in parts.items()
                for fault in shape_faults(spec, deployment.of(role), drafter.facts, names, tp)
            )
        )
        if refused := [fault for fault in faults if fault.refused]:
            sizes = "; ".join(f"{fault.module}: {fault.says}" for fault in refused[:FEW])
            others = f" (and {len(refused) - FEW} more)" if len(refused) > FEW else ""
            raise Refused(
                f"{spec} has no kernel for some sizes of this drafter",
                why=f"{sizes}{others} [{refused[0].evidence}: {refused[0].source}]",
                cure="take a smaller --tensor-parallel-size, another recipe, or exclude these weights in a recipe of "
                "your own",
            )
        yield from (f"{spec}: {fault.module}: {fault.says} [{fault.evidence}: {fault.source}]" for fault in faults)


def _shared_deployment(deployments: Mapping[str, Deployment]) -> Deployment:
    """The form that all engines named share.

    Raises:
        UsageError: they need different files.
    """
    names_by_output = {d.written: name for name, d in deployments.items()}
    if len(names_by_output) > 1:
        files = "; ".join(f"{name}: {d.format}, {d.numbers}" for name, d in deployments.items())
        raise UsageError(
            "these engines need different files",
            why=files,
            cure="quantize once for each of them, with one --for at a time",
        )
    return next(iter(deployments.values()))


def _output_of(
    deployment: Deployment, drafter: Drafter, selection: Selection, specs: Sequence[EngineSpec], target: Target | None
) -> QuantizedOutput:
    from draftconv.quantization.formats import formats

    forms: dict[tuple[FormatName, str | None, Scheme], list[str]] = {}
    for role, part in deployment.parts.items():  # MAIN first: what no list names is told of by its class
        names = [name for name, its in selection.roles.items() if its == role]
        if names:
            forms.setdefault((part.format, part.style, part.scheme), []).extend(names)
    parts: dict[str, OutputPart] = {}
    ignored: dict[str, None] = {}
    for (format_name, style, scheme), names in forms.items():
        ignore, listed = spelled(
            format_name, drafter.facts, selection.kept, names, specs, target, parted=len(forms) > 1
        )
        parts |= dict.fromkeys(names, OutputPart(formats()[format_name], style, scheme, listed))
        ignored |= dict.fromkeys(ignore)
    return QuantizedOutput(parts, tuple(ignored))


def _rounded(deployment: Deployment, rounding: BackendChoice) -> Deployment:
    """What is written once the backend has replaced scale rules by its own."""
    roles = {role: replace(part, scheme=rounding.parts[role].scheme) for role, part in deployment.roles.items()}
    return replace(deployment, scheme=rounding.parts[MAIN].scheme, roles=roles)


def _refuse_uncalibrated(deployment: Deployment, options: QuantizeOptions) -> None:
    if options.calibrate is None and any(part.scheme.rounding == "gptq" for part in deployment.parts.values()):
        raise UsageError(
            f"recipe {options.recipe} rounds weights by GPTQ",
            why="it weighs errors by the drafter's own inputs, which a trace gives",
            cure="make a trace with `draftconv trace`, then add --calibrate TRACE",
        )
    for scheme in (part.scheme for part in deployment.parts.values()):
        if scheme.has_static_inputs and options.calibrate is None:
            raise UsageError(
                f"recipe {options.recipe} scales activations by fixed numbers: {scheme.inputs}",
                why="they are measured on the drafter's own inputs, never invented",
                cure="make a trace with `draftconv trace`, then add --calibrate TRACE",
            )


def refuse_unneeded_trace(decided: QuantizationPlan) -> None:
    """Refuse a trace that nobody would open: whoever gives one expects that it changes the output.

    Raises:
        UsageError: there is one, and nothing of this quantization is calibrated; or there is none to take a half of.
    """
    rounding, name, options = decided.rounding, decided.recipe.name, decided.requested.options
    if options.calibrate is None and options.calibrate_on != "all":
        raise UsageError(
            f"--calibrate-on {options.calibrate_on} has no meaning without --calibrate", cure="add --calibrate TRACE"
        )
    if options.calibrate is None or rounding.calibrated:
        return
    rounded = any(part.scheme.inputs is not None for part in rounding.parts.values())
    activations = "are scaled while the drafter runs" if rounded else "stay in 16 bits"
    parts = decided.deployment.parts.values()
    smooths = rounding.backend == "native" and any(part.format == SMOOTHED for part in parts)
    raise UsageError(
        f"recipe {name} needs no calibration, so --calibrate would change nothing",
        why=f"its activations {activations}",
        cure="leave --calibrate out"
        + (", or add --backend modelopt, which smooths activations by it" if smooths else ""),
    )
