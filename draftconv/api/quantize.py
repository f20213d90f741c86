"""Quantize a drafter into the format that an engine really runs.

    recipe → form on each engine named → read → which tensors → plan, checked as the engine would → (write)

Everything up to the plan is decided without reading weights, so that what cannot be served is
refused at once. A recipe with static activation scales is calibrated on a trace first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftconv.checkpoint import open_checkpoint
from draftconv.conversion import packing
from draftconv.conversion.options import ConvertOptions
from draftconv.conversion.plan import Conversion, plan_drafter, refuse_place
from draftconv.conversion.quantized import Told, quantization_record
from draftconv.conversion.rounding import Rounding, decide
from draftconv.conversion.work import Work
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target, find_target
from draftconv.engines import EngineSpec, parse_engine
from draftconv.engines.kernels import Deployment, resolve, widest
from draftconv.engines.shapes import shape_faults
from draftconv.errors import Refused, UsageError
from draftconv.quantization.exclusions import WEIGHT, Selection, fused_with, refuse_heads, select
from draftconv.quantization.oracles import BackendName
from draftconv.quantization.recipes import Recipe, find_recipe
from draftconv.quantization.scheme import Scheme

if TYPE_CHECKING:
    from draftconv.quantization.deviation import Deviation
    from draftconv.quantization.grids import InputScales
    from draftconv.quantization.reading import Stored
    from draftconv.quantization.weights import Smoothing
    from draftconv.replay.replay import Arm
    from draftconv.traces.request import Request

FEW = 3
"""Sizes that a refusal names; the rest are counted."""


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Everything that decides a quantized output.

    Attributes:
        recipe: a shipped one by name, or the path of a YAML file.
        engines: as `ENGINE[@VERSION][:HARDWARE]`; none writes the form that most engines read.
        allow_a16: leave activations in 16 bits where an engine has no form of the recipe otherwise.
        tp: ranks of tensor parallelism, for the sizes that the engines' kernels take.
        calibrate: a trace, for recipes with static activation scales.
        backend: who rounds the weights. `device`: where torch rounds them.
        requantize: take a source that is quantized already.
        convert: how everything else is converted; its `to` follows from `engines`.
    """

    recipe: str
    engines: tuple[str, ...] = ()
    allow_a16: bool = False
    tp: int = 1
    calibrate: Path | None = None
    backend: BackendName = "native"
    device: str = "cpu"
    requantize: bool = False
    convert: ConvertOptions = field(default_factory=ConvertOptions)


@dataclass(frozen=True, slots=True)
class Quantization:
    """A quantization that is decided and checked, and not yet written.

    Attributes:
        deployments: engine as it was named → what will run there; empty when none was.
        rounding: who rounds the weights, and what is not as the recipe says.
        faults: sizes for which an engine leaves the kernel that it would have taken, in words.
        deviations: canonical weight → how far it went; filled while the output is written.
        stored: the quantized weights of the source; None where it had none.
    """

    recipe: Recipe
    selection: Selection
    deployment: Deployment
    deployments: Mapping[str, Deployment]
    rounding: Rounding
    conversion: Conversion
    faults: tuple[str, ...]
    deviations: Mapping[str, Deviation]
    stored: Stored | None = None

    @property
    def unpacked(self) -> tuple[str, ...]:
        """Weights that were quantized in the source and are floats now, because the recipe keeps them."""
        names = (f"{module}{WEIGHT}" for module in self.stored.modules) if self.stored else ()
        return tuple(name for name in names if name not in self.selection.quantized)

    def write(self, out: str | Path, *, overwrite: bool = False, progress: Callable[[int], None] | None = None) -> None:
        """Write the directory `out`, which appears whole or not at all; see `Conversion.write`."""
        self.conversion.write(out, overwrite=overwrite, progress=progress)


def quantize(
    source: str | Path,
    out: str | Path,
    options: QuantizeOptions,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Quantization:
    """Quantize a drafter and write it.

    Raises:
        DraftconvError: see `prepare`; WriteError when the output cannot be written.
    """
    refuse_place(source, out, overwrite=overwrite)
    quantization = prepare(source, options)
    quantization.write(out, overwrite=overwrite, progress=progress)
    return quantization


def prepare(source: str | Path, options: QuantizeOptions, *, download: bool = True) -> Quantization:
    """Decide and check a quantization without writing anything.

    Raises:
        Refused: an engine has no form of the recipe or no kernel for the drafter's sizes, the recipe quantizes
            the head, the drafter is quantized already, the backend does not have the scheme, or what would be
            written would not be read rightly.
        Undecided: the source can be read in several ways.
        UsageError: unknown recipe or engine, several engines that need different files, no calibration,
            a backend whose package is missing or does not start.
    """
    recipe = find_recipe(options.recipe)
    specs = [parse_engine(text) for text in options.engines]
    target = find_target(options.convert.target, options.convert.target_layers)
    checkpoint = open_checkpoint(source, download=download)
    drafter = options.convert.said.read(checkpoint, target)
    stored = _stored(drafter, options)
    deployments = {str(spec): resolve(recipe, spec, allow_a16=options.allow_a16, facts=drafter.facts) for spec in specs}
    deployment = _one(deployments) if deployments else widest(recipe)
    selection = select(recipe, drafter.facts)
    refuse_heads(recipe, selection)
    faults = tuple(_slower(specs, deployment, drafter, selection, options.tp))
    _refuse_uncalibrated(deployment, options)
    rounding = decide(options.backend, recipe, deployment, options.calibrate, options.device)
    deployment = replace(deployment, scheme=rounding.scheme)
    form = _form(deployment, drafter, selection, specs, target)
    scales: InputScales = {}
    smoothings: Mapping[str, Smoothing] = {}
    if rounding.smooths and options.calibrate is not None:
        smoothings, notes = _smoothings(drafter, stored, deployment.scheme, selection, options.calibrate)
        rounding = replace(rounding, notes=(*rounding.notes, *notes))
    elif options.calibrate is not None:
        scales = _input_scales(drafter, deployment, selection, options.calibrate)
    deviations: dict[str, Deviation] = {}

    def packer(work: Work) -> Work:
        by = f"; rounded by {rounding.package}" if rounding.package else ""
        why = f"quantized by recipe {recipe.name}: {deployment.scheme}{by}"
        return packing.quantize(
            work,
            selection.quantized,
            form,
            why,
            rounding=rounding,
            deviations=deviations,
            input_scales=scales,
            smoothings=smoothings,
            stored=stored,
        )

    findings = check_drafter(drafter, target, level="deep" if options.convert.deep else "sample")
    convert = replace(options.convert, to=_layout(specs))
    record = quantization_record(
        recipe, deployment, selection, rounding, engines=tuple(deployments), allow_a16=options.allow_a16,
        tp=options.tp, calibrate=options.calibrate,
    )  # fmt: skip
    told = Told(record, str(deployment.scheme), deviations)
    conversion = plan_drafter(
        drafter,
        findings,
        target,
        convert,
        packer=packer,
        engines=specs,
        told=told,
        again=(stored, selection.quantized) if stored else None,
    )
    return Quantization(recipe, selection, deployment, deployments, rounding, conversion, faults, deviations, stored)


def _stored(drafter: Drafter, options: QuantizeOptions) -> Stored | None:
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
    from draftconv.quantization.reading import find_stored

    return find_stored(drafter, options.convert.from_format)


def _slower(
    specs: Sequence[EngineSpec], deployment: Deployment, drafter: Drafter, selection: Selection, tp: int
) -> Iterator[str]:
    """Sizes that an engine runs with another kernel than it would have taken.

    Raises:
        Refused: sizes that an engine does not run at all.
    """
    for spec in specs:
        faults = shape_faults(spec, deployment, drafter.facts, selection.quantized, tp)
        if refused := [fault for fault in faults if fault.refused]:
            told = "; ".join(f"{fault.module}: {fault.says}" for fault in refused[:FEW])
            others = f" (and {len(refused) - FEW} more)" if len(refused) > FEW else ""
            raise Refused(
                f"{spec} has no kernel for some sizes of this drafter",
                why=f"{told}{others} [{refused[0].evidence}: {refused[0].source}]",
                cure="take a smaller --tp, another recipe, or exclude these weights in a recipe of your own",
            )
        yield from (f"{spec}: {fault.module}: {fault.says} [{fault.evidence}: {fault.source}]" for fault in faults)


def _one(deployments: Mapping[str, Deployment]) -> Deployment:
    """The form that all engines named share.

    Raises:
        UsageError: they need different files.
    """
    forms = {(d.format, d.style, d.scheme): name for name, d in deployments.items()}
    if len(forms) > 1:
        told = "; ".join(f"{name}: {d.format}, {d.scheme}" for name, d in deployments.items())
        raise UsageError(
            "these engines need different files",
            why=told,
            cure="quantize once for each of them, with one --for at a time",
        )
    return next(iter(deployments.values()))


def _layout(specs: Sequence[EngineSpec]) -> str:
    names = {spec.name for spec in specs}
    return names.pop() if len(names) == 1 else "portable"


def _form(
    deployment: Deployment,
    drafter: Drafter,
    selection: Selection,
    specs: Sequence[EngineSpec],
    target: Target | None,
) -> packing.Form:
    from draftconv.quantization.formats import formats

    facts, kept, quantized = drafter.facts, selection.kept, selection.quantized
    ignore, listed = packing.spelled(deployment.format, facts, kept, quantized, specs, target)
    return packing.Form(
        formats()[deployment.format],
        deployment.style,
        deployment.scheme,
        ignore,
        listed,
    )


def _refuse_uncalibrated(deployment: Deployment, options: QuantizeOptions) -> None:
    inputs = deployment.scheme.inputs
    if inputs is not None and not inputs.dynamic and options.calibrate is None:
        raise UsageError(
            f"recipe {options.recipe} scales activations by fixed numbers: {inputs}",
            why="they are measured on the drafter's own inputs, never invented",
            cure="make a trace with `draftconv trace`, then add --calibrate TRACE",
        )


def _input_scales(drafter: Drafter, deployment: Deployment, selection: Selection, calibrate: Path) -> InputScales:
    """Scales of static activations, measured on a trace; none where they are dynamic."""
    inputs = deployment.scheme.inputs
    if inputs is None or inputs.dynamic:
        return {}
    from draftconv.quantization.grids import input_scale
    from draftconv.replay.calibration import input_peaks

    arm, requests = _fed(drafter, calibrate)
    modules = [name.removesuffix(WEIGHT) for name in selection.quantized]
    peaks = input_peaks(arm, requests, arm.boundaries, modules)
    return {module: input_scale(peak, inputs) for module, peak in peaks.items()}


def _smoothings(
    drafter: Drafter, stored: Stored | None, scheme: Scheme, selection: Selection, calibrate: Path
) -> tuple[dict[str, Smoothing], list[str]]:
    """What AWQ smooths the inputs of weights by, found when they are written; and what to say of it.

    Source of what is left out: TensorRT-LLM `_torch/modules/linear.py`, 1.3.0rc at 00bbf71e; read.
    """
    from draftconv.quantization.oracles.modelopt import smoothing
    from draftconv.quantization.weights import Again, Smoothing
    from draftconv.replay.calibration import sampled_inputs

    groups = dict.fromkeys(fused_with(name, selection.quantized) for name in selection.quantized)
    joined = [name for group in groups if len(group) > 1 and scheme.inputs is None for name in group]
    smooth = [group for group in groups if group[0] not in joined]
    arm, requests = _fed(drafter, calibrate)
    sampled = sampled_inputs(arm, requests, arm.boundaries, [group[0].removesuffix(WEIGHT) for group in smooth])
    found: dict[str, Smoothing] = {}
    for group in smooth:
        inputs = sampled[group[0].removesuffix(WEIGHT)]
        again = group[0].removesuffix(WEIGHT) in stored.modules if stored else False
        refs = {name: Again(name, stored) if stored and again else drafter.tensors[name] for name in group}
        found |= dict.fromkeys(group, Smoothing(refs, scheme, inputs.rows_NI, inputs.peak_I, smoothing))
    notes = []
    if sampled:
        rows = max(len(inputs.rows_NI) for inputs in sampled.values())
        notes += [f"inputs are smoothed by AWQ, found on {rows} rows of each that are spread over the trace"]
    if joined:
        modules = ", ".join(name.removesuffix(WEIGHT) for name in joined)
        notes += [f"not smoothed: {modules}: beside 16-bit activations TensorRT-LLM drops the factors of what it joins"]
    return found, notes


def _fed(drafter: Drafter, calibrate: Path) -> tuple[Arm, Iterator[Request]]:
    """The drafter and the requests of a trace, to be replayed for what its weights are fed."""
    from draftconv.replay.arms import Loading, load_arm
    from draftconv.traces.trace import open_trace

    trace = open_trace(calibrate)
    arm = load_arm(drafter.checkpoint.name, drafter, Loading(trace.table))
    return arm, (trace.read(entry, arm.boundaries) for entry in trace.entries)
