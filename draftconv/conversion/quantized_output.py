"""How quantized weights are written: format, style, scheme, and what its readers call kept and quantized modules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.checkpoint import Computation, Computed, PlannedTensor
from draftconv.conversion.working_drafter import ACTIVATIONS, QuantizationFiles, WorkingDrafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import Target
from draftconv.engines import EngineSpec
from draftconv.engines.ignore_lists import ignore_names, module_names, wide_modules, wide_names
from draftconv.quantization.recipes import FormatName
from draftconv.quantization.scheme import InputScheme, Scheme

if TYPE_CHECKING:
    from draftconv.quantization.formats.base import Format, StoredTensor


@dataclass(frozen=True, slots=True)
class QuantizedOutput:
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

    def packed(self) -> QuantizationFiles:
        """What config.json and its sidecars say."""
        from draftconv.quantization.formats.base import Declared

        weights = self.scheme.weights
        declared = Declared(
            weights.dtype, weights.granularity, weights.group, self.scheme.inputs, ignore=self.ignore, style=self.style
        )
        declaration = self.format.declare(declared, self.listed)
        return QuantizationFiles(declaration.config, declaration.sidecars)


def spelled(
    format_id: FormatName,
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
        return wide_names(format_id, facts, kept, target), wide_modules(format_id, facts, quantized, target)
    ignore = (name for spec in specs for name in ignore_names(spec, format_id, facts, kept, target))
    listed = (name for spec in specs for name in module_names(spec, format_id, facts, quantized, target))
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


def declare_activations(
    work: WorkingDrafter, before: InputScheme | None, output: QuantizedOutput, why: str = ""
) -> WorkingDrafter:
    """The work with a change of what inputs are rounded to declared, if there is one."""
    after = output.scheme.inputs
    if before == after:
        return work
    return work.declare("fact", ACTIVATIONS, f"{before or '16 bit'} → {after or '16 bit'}{why}")
