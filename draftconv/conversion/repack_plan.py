"""Quantized weights in another format: whether it holds the same integers, and how it declares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from draftconv.checkpoint import show, show_some
from draftconv.conversion.options import ConvertOptions
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts, Mla
from draftconv.drafter.fused_qparams import joined_values
from draftconv.engines import ENGINES, Engine, EngineSpec, parse_engine
from draftconv.engines.deployment import has_kernel, usual_style
from draftconv.errors import Refused, UsageError, did_you_mean
from draftconv.layouts.base import Layout
from draftconv.quantization.exclusions import WEIGHT, fused_with
from draftconv.quantization.scheme import DTYPES, Granularity, ScaleDtype, Scheme, WeightScheme

if TYPE_CHECKING:
    from draftconv.quantization.formats.base import Format, Weight
    from draftconv.quantization.quantized_weights import QuantizedWeights


ScalesKept = Literal["as stored", "narrowed", "rounded"]
"""Narrowed ones have the dtype of the weights, which holds every one of them; rounded ones have lost bits."""


@dataclass(frozen=True, slots=True)
class RepackPlan:
    """A repack that is decided.

    Attributes:
        stored: the weights that are packed anew.
        scheme: what the file declares. `scales`: what becomes of them.
        specs: who has to read them; none is every engine that reads the format.
    """

    stored: QuantizedWeights
    format: Format
    style: str | None
    scheme: Scheme
    scales: ScalesKept
    specs: Sequence[EngineSpec]

    @property
    def quantized(self) -> tuple[str, ...]:
        return tuple(f"{module}{WEIGHT}" for module in self.stored.modules)


def plan_repack(
    stored: QuantizedWeights, layout: Layout, options: ConvertOptions, engines: Sequence[EngineSpec]
) -> RepackPlan:
    """How these weights are written in the format asked for.

    Raises:
        UsageError: no such format or style. Refused: it cannot hold the integers.
    """
    from draftconv.quantization.formats import find_format

    fmt, style = find_format(str(options.pack))
    specs = engines or ([parse_engine(layout.id)] if layout.id in ENGINES else [])
    style = style or next((usual_style(spec.name, fmt.id) for spec in specs), None)
    scheme, scales = same_integers(stored, fmt, lossy=options.allow_lossy)
    return RepackPlan(stored, fmt, style, scheme, scales, specs)


def same_integers_for(stored: QuantizedWeights, engines: Sequence[Engine], facts: Facts) -> str | None:
    """The format that holds these integers unchanged and that most of these engines have a kernel for; None if none."""
    from draftconv.quantization.formats import formats

    mla = isinstance(facts.attention, Mla)
    readers: dict[str, int] = {}
    for name in dict.fromkeys(kernel.format for engine in engines for kernel in engine.kernels):  # preferred ones first
        try:
            scheme, _ = same_integers(stored, formats()[name], lossy=False)
        except Refused:
            continue
        readers[name] = sum(has_kernel(EngineSpec(e.name, e.version), name, scheme, mla=mla) for e in engines)
    best = max(readers, key=lambda name: readers[name], default=None)
    return best if best and readers[best] else None


def joined_faults(drafter: Drafter, packed: QuantizedWeights) -> frozenset[str]:
    """Problems of the values beside joined weights that stay when these are repacked."""
    qparams = {name: ref for name, ref in drafter.qparams.items() if name.rpartition(".")[0] in packed.modules}
    return frozenset(problem.code for problem in joined_values(replace(drafter, qparams=qparams)))


def apart(stored: QuantizedWeights, modules: Sequence[str]) -> tuple[QuantizedWeights, QuantizedWeights]:
    """Some of the quantized weights, and all others.

    Raises:
        UsageError: one is not quantized, a fused group is torn apart, or no other is left.
    """
    names = [f"{module}{WEIGHT}" for module in stored.modules]
    for module in modules:
        if module not in stored.modules:
            raise UsageError(
                f"--unpack {show(module)}: no such weight is quantized",
                cure=did_you_mean(module, stored.modules, f"quantized: {show_some(sorted(stored.modules), 4)}"),
            )
        torn = [n for n in fused_with(f"{module}{WEIGHT}", names) if n.removesuffix(WEIGHT) not in modules]
        if torn:
            raise UsageError(
                f"--unpack {module} without {show_some(torn, 4)}",
                why="engines join these into one weight, which is quantized or not as a whole",
                cure="name all of them",
            )
    rest = {module: parts for module, parts in stored.modules.items() if module not in modules}
    if not rest:
        raise UsageError("--unpack leaves nothing to pack", cure="use --dequantize instead of --pack")
    return replace(stored, modules={module: stored.modules[module] for module in modules}), replace(
        stored, modules=rest
    )


def same_integers(stored: QuantizedWeights, fmt: Format, *, lossy: bool) -> tuple[Scheme, ScalesKept]:
    """How a format would declare weights that are stored in another, and what becomes of their scales.

    Args:
        lossy: leave out activations that the format cannot declare, and round scales that it cannot hold.

    Raises:
        Refused: the format cannot hold the integers, or not all that belongs to them.
    """
    declared = stored.only.declared
    weight = stored.outline(next(iter(stored.modules)))
    dtype, inputs = weight.quantized.dtype, declared.inputs
    group = stored.group(weight)
    granularity: Granularity = "group" if group else per_of(weight)
    if (dtype, granularity) not in fmt.holds and (dtype, "group") in fmt.holds:
        granularity, group = "group", _held_group(stored)
    if (dtype, granularity) not in fmt.holds or (granularity == "group" and group is None):
        raise Refused(
            f"{fmt.title} cannot hold {DTYPES[dtype].title} per {f'group of {group}' if group else granularity}",
            why=f"it holds {', '.join(sorted(f'{DTYPES[g].title} per {p}' for g, p in fmt.holds))}",
            cure="choose another --pack, or --dequantize",
        )
    if inputs not in fmt.inputs and not lossy:
        raise Refused(
            f"{fmt.title} cannot declare activations as {inputs or '16 bit'}",
            why="the weights would be the same, and what they are multiplied with would not",
            cure="add --allow-lossy to leave activations in 16 bits",
        )
    wide = weight.quantized.scale.dtype.itemsize == 4 and dtype in ("int4", "int8")
    scale: ScaleDtype = "F32" if wide else DTYPES[dtype].scales[0]
    weights = WeightScheme(dtype, granularity, DTYPES[dtype].rules[0], scale, group)
    scheme = Scheme(weights, inputs if inputs in fmt.inputs else None)
    if not wide or weight.dtype == "F32" or _holds(fmt, weight, scheme):
        return scheme, "as stored"
    narrow = replace(scheme, weights=replace(weights, scale_dtype="weight"))
    if not _holds(fmt, weight, narrow):
        return scheme, "as stored"  # it is not for the scales; what for, is said where the tensors are planned
    from draftconv.quantization.regroup import rounding, scales_fit

    if all(scales_fit(stored.outline(module)) for module in stored.modules):
        return narrow, "narrowed"
    if not lossy:
        raise Refused(
            f"{fmt.title} has no room for F32 scales of {weight.dtype} weights",
            why=f"rounded to {weight.dtype}, scales and weights change by up to {rounding(weight.dtype):.2%}",
            cure="add --allow-lossy to round them, or use --dequantize instead of --pack",
        )
    return narrow, "rounded"


def _holds(fmt: Format, weight: Weight, scheme: Scheme) -> bool:
    outputs, inputs = weight.quantized.qvalues.shape
    try:
        fmt.parts((outputs, inputs), scheme, weight.dtype)
    except Refused:
        return False
    return True


def per_of(weight: Weight) -> Granularity:
    """Whether a weight has one scale, or one per row."""
    return "tensor" if weight.quantized.scale.numel() == 1 and weight.quantized.qvalues.shape[0] > 1 else "channel"


def _held_group(stored: QuantizedWeights) -> int | None:
    """The largest usual group that divides the inputs of every weight."""
    return next((g for g in (128, 64, 32) if all(inputs % g == 0 for _, inputs in stored.shapes.values())), None)
