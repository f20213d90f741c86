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

from draftconv.api import packing
from draftconv.api.convert import Conversion, ConvertOptions, plan_drafter
from draftconv.api.hints import hints
from draftconv.api.quantized import Told, quantization_record
from draftconv.api.work import Work
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target, find_target
from draftconv.engines import EngineSpec, parse_engine
from draftconv.engines.kernels import Deployment, resolve, widest
from draftconv.engines.shapes import shape_faults
from draftconv.errors import Refused, UsageError
from draftconv.layouts.reading import read_drafter
from draftconv.quantization.exclusions import WEIGHT, Selection, select
from draftconv.quantization.recipes import Recipe, find_recipe

if TYPE_CHECKING:
    from draftconv.quantization.deviation import Deviation
    from draftconv.quantization.grids import InputScales

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
        convert: how everything else is converted; its `to` follows from `engines`.
    """

    recipe: str
    engines: tuple[str, ...] = ()
    allow_a16: bool = False
    tp: int = 1
    calibrate: Path | None = None
    convert: ConvertOptions = field(default_factory=ConvertOptions)


@dataclass(frozen=True, slots=True)
class Quantization:
    """A quantization that is decided and checked, and not yet written.

    Attributes:
        deployments: engine as it was named → what will run there; empty when none was.
        faults: sizes for which an engine leaves the kernel that it would have taken, in words.
        deviations: canonical weight → how far it went; filled while the output is written.
    """

    recipe: Recipe
    selection: Selection
    deployment: Deployment
    deployments: Mapping[str, Deployment]
    conversion: Conversion
    faults: tuple[str, ...]
    deviations: Mapping[str, Deviation]

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
    quantization = prepare(source, options)
    quantization.write(out, overwrite=overwrite, progress=progress)
    return quantization


def prepare(source: str | Path, options: QuantizeOptions, *, download: bool = True) -> Quantization:
    """Decide and check a quantization without writing anything.

    Raises:
        Refused: an engine has no form of the recipe or no kernel for the drafter's sizes, the drafter is
            quantized already, or what would be written would not be read rightly.
        UsageError: unknown recipe or engine, several engines that need different files, no calibration.
    """
    recipe = find_recipe(options.recipe)
    specs = [parse_engine(text) for text in options.engines]
    target = find_target(options.convert.target, options.convert.target_layers)
    checkpoint = open_checkpoint(source, download=download)
    drafter = read_drafter(checkpoint, hints(options.convert.source, options.convert.aux_convention, target))
    _refuse_quantized(drafter)
    deployments = {str(spec): resolve(recipe, spec, allow_a16=options.allow_a16, facts=drafter.facts) for spec in specs}
    deployment = _one(deployments) if deployments else widest(recipe)
    selection = select(recipe, drafter.facts)
    faults = tuple(_slower(specs, deployment, drafter, selection, options.tp))
    form = _form(deployment, drafter, selection, specs, target)
    scales = _input_scales(drafter, deployment, selection, options)
    deviations: dict[str, Deviation] = {}

    def packer(work: Work) -> Work:
        why = f"quantized by recipe {recipe.name}: {deployment.scheme}"
        return packing.quantize(work, selection.quantized, form, why, deviations=deviations, input_scales=scales)

    findings = check_drafter(drafter, target, level="deep" if options.convert.deep else "sample")
    convert = replace(options.convert, to=_layout(specs))
    record = quantization_record(
        recipe, deployment, selection, engines=tuple(deployments), allow_a16=options.allow_a16, tp=options.tp,
        calibrate=options.calibrate,
    )  # fmt: skip
    told = Told(record, str(deployment.scheme), deviations)
    conversion = plan_drafter(drafter, findings, target, convert, packer=packer, engines=specs, told=told)
    return Quantization(recipe, selection, deployment, deployments, conversion, faults, deviations)


def _refuse_quantized(drafter: Drafter) -> None:
    if drafter.facts.quantization:
        raise Refused(
            f"this drafter is quantized already: {drafter.facts.quantization}",
            why="errors of both would add up",
            cure="quantize the 16-bit drafter that it was made from, or repack it with `draftconv convert --pack`",
        )


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


def _input_scales(
    drafter: Drafter, deployment: Deployment, selection: Selection, options: QuantizeOptions
) -> InputScales:
    """Scales of static activations, measured on the trace of `--calibrate`.

    Raises:
        UsageError: the recipe needs them and there is no trace.
    """
    inputs = deployment.scheme.inputs
    if inputs is None or inputs.dynamic:
        return {}
    if options.calibrate is None:
        raise UsageError(
            f"recipe {options.recipe} scales activations by fixed numbers: {inputs}",
            why="they are measured on the drafter's own inputs, never invented",
            cure="make a trace with `draftconv trace`, then add --calibrate TRACE",
        )
    from draftconv.parity.arms import Loading, load_arm
    from draftconv.parity.calibration import input_peaks
    from draftconv.parity.trace import open_trace
    from draftconv.quantization.grids import input_scale

    trace = open_trace(options.calibrate)
    arm = load_arm(drafter.checkpoint.name, drafter, Loading(trace.table))
    modules = [name.removesuffix(WEIGHT) for name in selection.quantized]
    requests = (trace.read(entry, arm.boundaries) for entry in trace.entries)
    peaks = input_peaks(arm, requests, arm.boundaries, modules)
    return {module: input_scale(peak, inputs) for module, peak in peaks.items()}
