"""Passes that touch quantized weights: quantize, bring into another format, bring back to floats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftconv.checkpoint import Computation, Computed, Copy, PlannedTensor, show, show_some
from draftconv.conversion.work import ChangeKind, Packed, Work
from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import HEAD
from draftconv.engines import EngineSpec
from draftconv.engines.naming import ignore_names, module_names, wide_modules, wide_names
from draftconv.errors import Refused, UsageError, did_you_mean
from draftconv.quantization.exclusions import NO_HEADS, WEIGHT, fused_with
from draftconv.quantization.recipes import FormatName
from draftconv.quantization.scheme import GRIDS, InputScheme, Per, ScaleDtype, Scheme, WeightScheme

if TYPE_CHECKING:
    from draftconv.conversion.rounding import Rounding
    from draftconv.quantization.deviation import Deviation
    from draftconv.quantization.formats.base import Format, Part, Weight
    from draftconv.quantization.grids import InputScales
    from draftconv.quantization.reading import Stored
    from draftconv.quantization.weights import Floats, Smoothing

ACTIVATIONS = "activations"
"""What a record calls the rounding of inputs, which no fact of the drafter holds."""


DEQUANTIZED = "dequantized from "
"""How a record begins to tell of a weight that became floats again."""


@dataclass(frozen=True, slots=True)
class Form:
    """How quantized weights are to be written.

    Attributes:
        scheme: what the file declares. `ignore`: kept modules as the readers spell them.
        listed: quantized modules as the reader spells them, for formats that list them.
        rounded: scales of a repack are rounded to the dtype of the weights, because the format holds no others.
    """

    format: Format
    style: str | None
    scheme: Scheme
    ignore: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    rounded: bool = False

    def packed(self) -> Packed:
        """What config.json and its sidecars say."""
        from draftconv.quantization.formats.base import Declared

        weights = self.scheme.weights
        declared = Declared(
            weights.grid, weights.per, weights.group, self.scheme.inputs, ignore=self.ignore, style=self.style
        )
        declaration = self.format.declare(declared, self.listed)
        return Packed(declaration.config, declaration.sidecars)


def spelled(
    form: FormatName,
    facts: Facts,
    kept: Collection[str],
    quantized: Collection[str],
    specs: Sequence[EngineSpec],
    target: Target | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is kept, and what is quantized where a format lists it, in the names that these engines match.

    Args:
        specs: none spells both for every engine that reads the format.
    """
    if not specs:
        return wide_names(form, facts, kept, target), wide_modules(form, facts, quantized, target)
    ignore = (name for spec in specs for name in ignore_names(spec, form, facts, kept, target))
    listed = (name for spec in specs for name in module_names(spec, form, facts, quantized, target))
    return tuple(dict.fromkeys(ignore)), tuple(dict.fromkeys(listed))


def quantize(
    work: Work,
    names: Sequence[str],
    form: Form,
    why: str,
    *,
    rounding: Rounding,
    deviations: dict[str, Deviation],
    input_scales: InputScales,
    smoothings: Mapping[str, Smoothing],
    stored: Stored | None = None,
) -> Work:
    """Quantize some weights of a drafter.

    Args:
        names: canonical weights. `why`: for the record. `rounding`: who rounds them.
        deviations: is told how far each weight went, once the plan is executed.
        input_scales: of static activations, by module. `smoothings`: of inputs, by weight.
        stored: quantized weights of the source; those among `names` are quantized again.

    Raises:
        Refused: the format cannot hold a weight of this shape.
    """
    from draftconv.quantization.weights import Again, Found, Quantize

    sources = {name: _float_source(work, name, stored) for name in names}
    found = Found()
    for name, ref in sources.items():
        module = name.removesuffix(WEIGHT)
        computation = Quantize(
            name,
            ref,
            form.scheme,
            form.format,
            form.style,
            tuple(sources[other] for other in fused_with(name, sources)),
            deviations,
            input_scales.get(module),
            rounding.rounds,
            rounding.block,
            rounding.device,
            smoothings.get(name),
            found,
        )
        outputs, inputs = ref.shape
        parts = form.format.parts((outputs, inputs), form.scheme, ref.dtype)
        work = _computed(work.without(name), module, parts, computation)
        kind: ChangeKind = "requantized" if isinstance(ref, Again) else "replaced"
        work = work.declare(kind, name, f"{why}; inputs smoothed by AWQ" if name in smoothings else why)
    if stored is not None:
        work = _activations(work, stored.declared.inputs, form)
    return replace(work, packed=form.packed())


def without_quantized(work: Work, stored: Stored) -> Work:
    """Only what is not quantized; every part of a quantized weight is declared as taken apart."""
    for module, parts in stored.modules.items():
        work = work.without(*(f"{module}.{suffix}" for suffix in parts))
        for ref in parts.values():
            work = work.declare("dropped", ref.name, f"a part of {module}{WEIGHT} as {stored.format.title} stores it")
    return work


def repack(work: Work, stored: Stored, form: Form) -> Work:
    """The same integers and scales in another format. Scales are read, to know that they fit; codes are not.

    Raises:
        Refused: the format cannot hold them.
        BadCheckpoint: the tensors of a weight do not fit each other.
    """
    from draftconv.quantization.repack import rounding
    from draftconv.quantization.weights import Repack

    for module, parts in stored.modules.items():
        group, weight_only = form.scheme.weights.group, form.scheme.inputs is None
        computation = Repack(module, parts, stored, form.format, form.style, group, form.rounded, weight_only)
        weight = computation.outline()
        foretold = form.format.parts(stored.shapes[module], form.scheme, weight.dtype)
        work = _computed(work, module, foretold, computation)
        why = f"the same integers and scales as {form.format.title}"
        if form.rounded:
            why += f", scales rounded to {weight.dtype}: values change by up to {rounding(weight.dtype):.2%}"
        work = work.declare("replaced", f"{module}{WEIGHT}", why)
    work = _activations(work, stored.declared.inputs, form, f": {form.format.title} cannot declare them")
    return replace(work, packed=form.packed())


def _activations(work: Work, before: InputScheme | None, form: Form, why: str = "") -> Work:
    """The work with a change of what inputs are rounded to declared, if there is one."""
    after = form.scheme.inputs
    if before == after:
        return work
    return work.declare("fact", ACTIVATIONS, f"{before or '16 bit'} → {after or '16 bit'}{why}")


def taken_apart(work: Work, stored: Stored, names: Collection[str]) -> Work:
    """Without the quantized weights of the source: floats in place of those that are not among `names`."""
    again = {module: parts for module, parts in stored.modules.items() if f"{module}{WEIGHT}" in names}
    kept = {module: parts for module, parts in stored.modules.items() if module not in again}
    work = dequantize(work, replace(stored, modules=kept), None)
    return without_quantized(work, replace(stored, modules=again))


def dequantize(work: Work, stored: Stored, dtype: str | None) -> Work:
    """Floats in place of quantized weights: exactly what they stand for, rounded once.

    Args:
        dtype: to round to; None is that of the drafter's other weights.
    """
    from draftconv.quantization.weights import Dequantize

    work = without_quantized(work, stored)
    for module, parts in stored.modules.items():
        computation = Dequantize(f"{module}{WEIGHT}", parts, stored, dtype or stored.dtype)
        planned = PlannedTensor(
            f"{module}{WEIGHT}", computation.dtype, stored.shapes[module], Computed(computation, "weight")
        )
        work = work.put(planned).declare("replaced", f"{module}{WEIGHT}", f"{DEQUANTIZED}{stored.format.title}")
    return work


def apart(stored: Stored, modules: Sequence[str]) -> tuple[Stored, Stored]:
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


def refuse_heads(stored: Stored) -> None:
    """Keep a quantized head from being packed again.

    Raises:
        Refused: the head is quantized.
    """
    if HEAD.removesuffix(WEIGHT) in stored.modules:
        raise Refused(
            "the head of this drafter is quantized",
            why=NO_HEADS,
            cure="add --unpack lm_head to write the floats that it stands for",
        )


def same_integers(stored: Stored, form: Format, *, lossy: bool) -> tuple[Scheme, bool]:
    """How a format would declare weights that are stored in another, and whether their scales have to be rounded.

    Args:
        lossy: leave out activations that the format cannot declare, and round scales that it cannot hold.

    Raises:
        Refused: the format cannot hold the integers, or not all that belongs to them.
    """
    declared = stored.declared
    weight = stored.outline(next(iter(stored.modules)))
    grid, inputs = weight.quantized.grid, declared.inputs
    group = stored.group(weight)
    per: Per = "group" if group else per_of(weight)
    if (grid, per) not in form.holds and (grid, "group") in form.holds:
        per, group = "group", _held_group(stored)
    if (grid, per) not in form.holds or (per == "group" and group is None):
        raise Refused(
            f"{form.title} cannot hold {GRIDS[grid].title} {f'per group of {group}' if group else f'per {per}'}",
            why=f"it holds {', '.join(sorted(f'{GRIDS[g].title} per {p}' for g, p in form.holds))}",
            cure="choose another --pack, or --dequantize",
        )
    if inputs not in form.inputs and not lossy:
        raise Refused(
            f"{form.title} cannot declare activations as {inputs or '16 bit'}",
            why="the weights would be the same, and what they are multiplied with would not",
            cure="add --allow-lossy to leave activations in 16 bits",
        )
    wide = weight.quantized.scale.dtype.itemsize == 4 and grid in ("int4", "int8")
    scale: ScaleDtype = "F32" if wide else GRIDS[grid].scales[0]
    weights = WeightScheme(grid, per, GRIDS[grid].rules[0], scale, group)
    scheme = Scheme(weights, inputs if inputs in form.inputs else None)
    if not wide or weight.dtype == "F32" or _holds(form, weight, scheme):
        return scheme, False
    narrow = replace(scheme, weights=replace(weights, scale_dtype="weight"))
    if not _holds(form, weight, narrow):
        return scheme, False  # it is not for the scales; what for, is said where the tensors are planned
    if not lossy:
        from draftconv.quantization.repack import rounding

        raise Refused(
            f"{form.title} has no room for F32 scales of {weight.dtype} weights",
            why=f"rounded to {weight.dtype}, scales and weights change by up to {rounding(weight.dtype):.2%}",
            cure="add --allow-lossy to round them, or use --dequantize instead of --pack",
        )
    return narrow, True


def _holds(form: Format, weight: Weight, scheme: Scheme) -> bool:
    outputs, inputs = weight.quantized.codes.shape
    try:
        form.parts((outputs, inputs), scheme, weight.dtype)
    except Refused:
        return False
    return True


def per_of(weight: Weight) -> Per:
    """Whether a weight has one scale, or one per row."""
    return "tensor" if weight.quantized.scale.numel() == 1 and weight.quantized.codes.shape[0] > 1 else "channel"


def _computed(work: Work, module: str, parts: Iterable[Part], computation: Computation) -> Work:
    """The tensors that a module becomes, all of one computation."""
    return work.put(
        *(
            PlannedTensor(f"{module}.{part.suffix}", part.dtype, part.shape, Computed(computation, part.suffix))
            for part in parts
        )
    )


def _held_group(stored: Stored) -> int | None:
    """The largest usual group that divides the inputs of every weight."""
    return next((g for g in (128, 64, 32) if all(inputs % g == 0 for _, inputs in stored.shapes.values())), None)


def _float_source(work: Work, name: str, stored: Stored | None) -> Floats:
    if stored is not None and name.removesuffix(WEIGHT) in stored.modules:
        from draftconv.quantization.weights import Again

        return Again(name, stored)
    match work.tensors[name].operation:
        case Copy(ref):
            return ref
        case _:
            raise Refused(
                f"{name} is changed before it is quantized",
                why="its values would be rounded twice without a word",
                cure="convert first, then quantize what came of it",
            )
