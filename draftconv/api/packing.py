"""Passes that touch quantized weights: quantize, bring into another format, bring back to floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftconv.api.work import Packed, Work
from draftconv.checkpoint import Computed, Copy, PlannedTensor, TensorRef
from draftconv.errors import Refused
from draftconv.quantization.exclusions import WEIGHT, fused_with
from draftconv.quantization.scheme import Scheme

if TYPE_CHECKING:
    from torch import Tensor

    from draftconv.quantization.deviation import Deviation
    from draftconv.quantization.formats.base import Format
    from draftconv.quantization.reading import Stored


@dataclass(frozen=True, slots=True)
class Form:
    """How quantized weights are to be written.

    Attributes:
        scheme: what the file declares. `ignore`: kept modules as the readers spell them.
        listed: quantized modules as the reader spells them, for formats that list them.
    """

    format: Format
    style: str | None
    scheme: Scheme
    ignore: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()

    def packed(self) -> Packed:
        """What config.json and its sidecars say."""
        from draftconv.quantization.formats.base import Declared

        weights = self.scheme.weights
        declared = Declared(
            weights.grid, weights.per, weights.group, self.scheme.inputs, ignore=self.ignore, style=self.style
        )
        declaration = self.format.declare(declared, self.listed)
        return Packed(declaration.config, declaration.sidecars)


def quantize(
    work: Work,
    names: Sequence[str],
    form: Form,
    why: str,
    *,
    input_scales: Mapping[str, Tensor] | None = None,
) -> tuple[Work, dict[str, Deviation]]:
    """Quantize some weights of a drafter.

    Args:
        names: canonical weights. `why`: for the record.
        input_scales: module → float32 [], of static activations.

    Returns:
        The work, and what will be told of each weight once the plan has been executed.

    Raises:
        Refused: the format cannot hold a weight of this shape.
    """
    from draftconv.quantization.weights import Quantize

    sources = {name: _float_source(work, name) for name in names}
    deviations: dict[str, Deviation] = {}
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
            (input_scales or {}).get(module),
        )
        outputs, inputs = ref.shape
        parts = form.format.parts((outputs, inputs), form.scheme, ref.dtype)
        work = work.without(name).put(
            *(
                PlannedTensor(f"{module}.{part.suffix}", part.dtype, part.shape, Computed(computation, part.suffix))
                for part in parts
            )
        )
        work = work.declare("replaced", name, why)
    return replace(work, packed=form.packed()), deviations


def repack(work: Work, stored: Stored, form: Form) -> Work:
    """The same integers and scales in another format.

    Raises:
        Refused: the format cannot hold them.
    """
    from draftconv.quantization.weights import Repack

    for module, parts in stored.modules.items():
        weight = stored.shapes[module]
        computation = Repack(
            module,
            parts,
            stored.format,
            stored.declared,
            stored.dtype,
            form.format,
            form.style,
            form.scheme.weights.group,
        )
        work = _without_parts(work, module, parts).put(
            *(
                PlannedTensor(f"{module}.{part.suffix}", part.dtype, part.shape, Computed(computation, part.suffix))
                for part in form.format.parts(weight, form.scheme, stored.dtype)
            )
        )
        work = work.declare("replaced", f"{module}.weight", f"the same integers as {form.format.title}")
    return replace(work, packed=form.packed())


def dequantize(work: Work, stored: Stored, dtype: str) -> Work:
    """Floats in place of quantized weights: exactly what they stand for, rounded once to `dtype`."""
    from draftconv.quantization.weights import Dequantize

    for module, parts in stored.modules.items():
        computation = Dequantize(f"{module}{WEIGHT}", parts, stored.format, stored.declared, dtype)
        planned = PlannedTensor(f"{module}{WEIGHT}", dtype, stored.shapes[module], Computed(computation, "weight"))
        work = _without_parts(work, module, parts).put(planned)
        work = work.declare("replaced", f"{module}{WEIGHT}", f"dequantized from {stored.format.title}")
    return work.with_facts("its weights were dequantized", quantization=None)


def _without_parts(work: Work, module: str, parts: Mapping[str, TensorRef]) -> Work:
    return work.without(*(f"{module}.{suffix}" for suffix in parts))


def _float_source(work: Work, name: str) -> TensorRef:
    match work.tensors[name].operation:
        case Copy(ref):
            return ref
        case _:
            raise Refused(
                f"{name} is changed before it is quantized",
                why="its values would be rounded twice without a word",
                cure="convert first, then quantize what came of it",
            )
