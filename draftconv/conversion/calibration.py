"""What a recipe needs that is measured: the drafter is fed a trace, and what reaches its weights is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from draftconv.conversion.backend_choice import BackendChoice
from draftconv.conversion.options import QuantizeOptions
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.quantization.exclusions import WEIGHT, Selection, fused_with

if TYPE_CHECKING:
    from draftconv.quantization.computations import Smoothing
    from draftconv.quantization.quantized_weights import QuantizedWeights
    from draftconv.quantization.rounding import InputScales
    from draftconv.quantization.scheme import InputScheme, Scheme
    from draftconv.replay.gptq import GptqCalibration
    from draftconv.replay.replay import Arm
    from draftconv.traces.request import TraceRequest
    from draftconv.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured on a trace.

    Attributes:
        scales: of static activations, by module. `smoothings`: of inputs, by weight.
        gptq: the weights that GPTQ rounds, which it does when the output is written; None where it rounds none.
        notes: what is to be said of it.
    """

    scales: InputScales = field(default_factory=dict)
    smoothings: Mapping[str, Smoothing] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    gptq: GptqCalibration | None = None


def calibration_trace(options: QuantizeOptions) -> Trace | None:
    """What a quantization is calibrated on; None where nothing was given.

    Raises:
        BadCheckpoint: it is no trace.
    """
    if options.trace is None:
        return None
    from draftconv.traces.halves import split_halves
    from draftconv.traces.trace import open_trace

    trace = open_trace(options.trace)
    return trace if options.calibrate_on == "all" else replace(trace, entries=split_halves(trace.entries).choosing)


def calibrate(
    drafter: Drafter,
    stored: QuantizedWeights | None,
    selection: Selection,
    rounding: BackendChoice,
    trace: Trace | None,
    target: Target | None = None,
) -> Calibration:
    """Measure what this rounding needs; nothing where it needs nothing.

    Args:
        stored: quantized weights of the source.
        target: that the drafter is made for, as far as it was told.

    Raises:
        BadCheckpoint, Refused: the trace cannot be read, or the drafter cannot be fed it.
        UsageError: the trace is of another target, or too short.
        Undecided: neither the drafter's files nor the trace tell which layers it captures.
    """
    if trace is None:
        return Calibration()
    from draftconv.replay.drafters import refuse_other_trace, with_layers

    drafter = with_layers(drafter, trace)
    refuse_other_trace(drafter, trace, target)
    scales: InputScales = {}
    smoothings: dict[str, Smoothing] = {}
    notes: list[str] = []
    for role, part in rounding.parts.items():
        names = [name for name, its in selection.roles.items() if its == role]
        if part.smooths:
            smoothed = _calibrate_smoothing(drafter, stored, part.scheme, names, trace)
            smoothings |= smoothed.smoothings
            notes += smoothed.notes
        elif part.has_static_inputs and part.scheme.inputs is not None:
            scales = {**scales, **_input_scales(drafter, part.scheme.inputs, names, trace)}
    gptq = None
    if any(part.scheme.rounding == "gptq" for part in rounding.parts.values()):
        gptq = _gptq(drafter, stored, selection, rounding, trace)
        notes += [f"GPTQ on {gptq.rows(held=False)} rows, judged on {gptq.rows(held=True)} that were held out"]
    return Calibration(scales, smoothings, tuple(notes), gptq)


def _gptq(
    drafter: Drafter,
    stored: QuantizedWeights | None,
    selection: Selection,
    rounding: BackendChoice,
    trace: Trace,
) -> GptqCalibration:
    """What GPTQ will round, and on which trace.

    Raises:
        UsageError: the trace is too short.
    """
    from draftconv.quantization.computations import RestoredWeight
    from draftconv.replay.gptq import GptqCalibration

    is_stored = frozenset(stored.modules) if stored else frozenset()
    schemes = {name: rounding.parts[role].scheme for name, role in selection.roles.items()}
    sources = {
        name: RestoredWeight(name, stored)
        if stored and name.removesuffix(WEIGHT) in is_stored
        else drafter.tensors[name]
        for name in schemes
    }
    made = GptqCalibration(drafter, sources, schemes, trace, rounding.device)
    made.refuse_unfit()
    return made


def _input_scales(drafter: Drafter, inputs: InputScheme, quantized: Sequence[str], trace: Trace) -> InputScales:
    """Scales of static activations."""
    from draftconv.quantization.rounding import input_scale
    from draftconv.replay.calibration import input_peaks

    arm, requests = _load_trace(drafter, trace)
    modules = [name.removesuffix(WEIGHT) for name in quantized]
    peaks = input_peaks(arm, requests, arm.boundaries, modules)
    return {module: input_scale(peak, inputs) for module, peak in peaks.items()}


def _calibrate_smoothing(
    drafter: Drafter, stored: QuantizedWeights | None, scheme: Scheme, quantized: Sequence[str], trace: Trace
) -> Calibration:
    """What AWQ smooths the inputs of weights by, found when they are written; and what to say of it.

    Source of what is left out: TensorRT-LLM `_torch/modules/linear.py`, 1.3.0rc at 00bbf71e; read.
    """
    from draftconv.quantization.backends.modelopt import smoothing
    from draftconv.quantization.computations import RestoredWeight, Smoothing
    from draftconv.replay.calibration import sampled_inputs

    groups = dict.fromkeys(fused_with(name, quantized) for name in quantized)
    joined = [name for group in groups if len(group) > 1 and scheme.inputs is None for name in group]
    smooth = [group for group in groups if group[0] not in joined]
    arm, requests = _load_trace(drafter, trace)
    sampled = sampled_inputs(arm, requests, arm.boundaries, [group[0].removesuffix(WEIGHT) for group in smooth])
    smoothings: dict[str, Smoothing] = {}
    for group in smooth:
        inputs = sampled[group[0].removesuffix(WEIGHT)]
        is_stored = group[0].removesuffix(WEIGHT) in stored.modules if stored else False
        refs = {name: RestoredWeight(name, stored) if stored and is_stored else drafter.tensors[name] for name in group}
        smoothings |= dict.fromkeys(group, Smoothing(refs, scheme, inputs.rows_NI, inputs.peak_I, smoothing))
    notes = []
    if sampled:
        rows = max(len(inputs.rows_NI) for inputs in sampled.values())
        notes += [f"inputs are smoothed by AWQ, found on {rows} rows of each that are spread over the trace"]
    if joined:
        modules = ", ".join(name.removesuffix(WEIGHT) for name in joined)
        notes += [f"not smoothed: {modules}: beside 16-bit activations the factors of joined weights are not loaded"]
    return Calibration(smoothings=smoothings, notes=tuple(notes))


def _load_trace(drafter: Drafter, trace: Trace) -> tuple[Arm, Iterator[TraceRequest]]:
    """The drafter and the requests of a trace, to be replayed for what its weights are fed."""
    from draftconv.replay.load_arm import LoadSettings, load_arm

    arm = load_arm(drafter.checkpoint.name, drafter, LoadSettings(trace.table))
    return arm, (trace.read(entry, arm.boundaries) for entry in trace.entries)
