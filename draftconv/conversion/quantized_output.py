"""How quantized weights are written: format, style, scheme, and what its readers call kept and quantized modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.checkpoint import Computation, Computed, PlannedTensor
from draftconv.conversion.working_drafter import ACTIVATIONS, QuantizationFiles, WorkingDrafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import HEAD
from draftconv.engines import EngineSpec
from draftconv.engines.ignore_lists import ignore_names, module_names, wide_modules, wide_names
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.recipes import FormatName
from draftconv.quantization.scheme import Scheme, told_inputs

if TYPE_CHECKING:
    from draftconv.quantization.formats.base import Format, StoredTensor


@dataclass(frozen=True, slots=True)
class OutputPart:
    """How the weights of one scheme are to be written.

    Attributes:
        scheme: what the file declares.
        listed: quantized modules as the reader spells them, for formats that list them.
    """

    format: Format
    style: str | None
    scheme: Scheme
    listed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuantizedOutput:
    """How quantized weights are to be written.

    Attributes:
        parts: weight → how it is written; weights of one scheme share one part.
        ignore: kept modules as the readers spell them.
    """

    parts: Mapping[str, OutputPart]
    ignore: tuple[str, ...] = ()

    @property
    def activations(self) -> str:
        """What inputs are rounded to, in words."""
        return told_inputs({name.removesuffix(WEIGHT): part.scheme.inputs for name, part in self.parts.items()})

    def packed(self) -> QuantizationFiles:
        """What config.json and its sidecars say.

        Raises:
            Refused: no file of the format holds weights of several schemes.
        """
        from draftconv.quantization.formats.base import Declared, DeclaredPart

        declared = [
            DeclaredPart(
                part.format,
                Declared(
                    part.scheme.weights.dtype,
                    part.scheme.weights.granularity,
                    part.scheme.weights.group,
                    part.scheme.inputs,
                    ignore=self.ignore,
                    style=part.style,
                    head=self.parts.get(HEAD) == part,
                ),
                part.listed,
            )
            for part in dict.fromkeys(self.parts.values())
        ]
        declaration = declared[0].format.declare_parts(declared)
        return QuantizationFiles(declaration.config, declaration.sidecars)


def spelled(
    format_id: FormatName,
    facts: Facts,
    kept: Collection[str],
    quantized: Collection[str],
    specs: Sequence[EngineSpec],
    target: Target | None,
    *,
    parted: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is kept, and what is quantized where a format lists it, in the names that these engines match.

    Args:
        specs: none spells both for every engine that reads the format.
        parted: the quantized ones are those of one of several schemes.
    """
    if not specs:
        modules = wide_modules(format_id, facts, quantized, target, parted=parted)
        return wide_names(format_id, facts, kept, target), modules
    ignore = (name for spec in specs for name in ignore_names(spec, format_id, facts, kept, target))
    listed = (name for spec in specs for name in module_names(spec, format_id, facts, quantized, target, parted=parted))
    return tuple(dict.fromkeys(ignore)), tuple(dict.fromkeys(listed))


def put_computed(
    work: WorkingDrafter, module: str, parts: Iterable[StoredTensor], computation: Computation
) -> WorkingDrafter:
    """The tensors that a module becomes, all of one computation."""
    return work.put(
        *(
            PlannedTensor(f"{module}.{part.suffix}", part.dtype, part.shape, Computed(computation, part.suffix))
            for part in parts
        )
    )


def declare_activations(work: WorkingDrafter, before: str, output: QuantizedOutput, why: str = "") -> WorkingDrafter:
    """The work with a change of what inputs are rounded to declared, if there is one.

    Args:
        before: what they were rounded to, in the words of `told_inputs`.
    """
    after = output.activations
    return work if before == after else work.declare("fact", ACTIVATIONS, f"{before} → {after}{why}")
