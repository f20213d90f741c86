"""What an engine multiplies the quantized weights of a drafter by, which need not be what the file declares.

A file says what activations are to be rounded to; the kernel that takes it decides. `Kernel.multiplied` is its answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftconv.drafter.facts import Facts, Mla
from draftconv.engines.deployed import one_or_each, weakest
from draftconv.engines.deployment import deployment, release_note, stored_kernel
from draftconv.engines.kernels import Kernel
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec, Evidence
from draftconv.engines.shapes import shape_faults
from draftconv.errors import Refused, Undecided
from draftconv.quantization.recipes import FormatName
from draftconv.quantization.scheme import DTYPES, InputScheme, Scheme, WeightScheme

if TYPE_CHECKING:
    from draftconv.quantization.formats.base import Declared

GROUP = 128
"""Inputs under one scale, where the file does not say and kernels take this."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What quantized weights are multiplied by on an engine.

    Attributes:
        inputs: what activations are rounded to first; None is 16 bit.
        executed: the kernel in words. `source`, `evidence`: where its row is from.
        notes: conditions under which it is otherwise.
    """

    inputs: InputScheme | None
    executed: str
    source: str
    evidence: Evidence
    notes: tuple[str, ...] = ()


def declared_scheme(declared: Declared) -> Scheme:
    """What a file says of its weights and activations.

    The rule that found the scales is not told, and no kernel depends on it.
    """
    dtype = DTYPES[declared.dtype]
    granularity = declared.granularity or ("group" if "group" in dtype.granularity else "channel")
    group = declared.group or dtype.group or GROUP if granularity == "group" else None
    scales = "weight" if "weight" in dtype.scales else dtype.scales[0]
    return Scheme(WeightScheme(declared.dtype, granularity, dtype.rules[0], scales, group), declared.inputs)


def arithmetic(
    spec: EngineSpec,
    scheme: Scheme,
    format_name: FormatName | None,
    style: str | None,
    facts: Facts,
    quantized: Collection[str],
) -> Arithmetic:
    """What an engine multiplies these weights by, where it takes them at all.

    Without hardware in `spec`: on all of the engine's hardware that has a kernel for them.

    Args:
        format_name, style: how they are stored; None is whichever form the engine takes.
        quantized: canonical names of the weights.

    Raises:
        Refused: it has no kernel for them, or none for their sizes.
        Undecided: its kernels are not known, or multiply otherwise from one hardware to another.
    """
    engine, mla = ENGINES[spec.name], isinstance(facts.attention, Mla)
    if not engine.kernels:
        raise Undecided(f"what {engine.title} multiplies is not known", why="no table of its kernels is at hand")
    kernels: dict[str, Kernel] = {}
    refusals: list[Refused] = []
    for hardware in (spec.hardware,) if spec.hardware else engine.hardware:
        try:
            kernel = stored_kernel(replace(spec, hardware=hardware), format_name, style, scheme, mla=mla)
            _refuse_sizes(replace(spec, hardware=hardware), kernel, scheme, facts, quantized)
        except Refused as refusal:
            refusals.append(refusal)
        else:
            kernels[hardware] = kernel
    if not kernels:
        raise refusals[0]
    if len({kernel.multiplied for kernel in kernels.values()}) > 1:
        raise Undecided(
            f"what {engine.title} multiplies depends on its hardware",
            why=one_or_each({name: kernel.executed for name, kernel in kernels.items()}),
            cure=f"name it: {', '.join(f'{spec.name}:{name}' for name in kernels)}",
        )
    return _merged(kernels, spec)


def _refuse_sizes(spec: EngineSpec, kernel: Kernel, scheme: Scheme, facts: Facts, quantized: Collection[str]) -> None:
    faults = shape_faults(spec, deployment(kernel, scheme), facts, quantized)
    if fault := next((fault for fault in faults if fault.refused), None):
        raise Refused(
            f"{ENGINES[spec.name].title} on {spec.hardware} has no kernel for some sizes of these weights",
            why=f"{fault.module}: {fault.says} ({fault.source})",
        )


def _merged(kernels: Mapping[str, Kernel], spec: EngineSpec) -> Arithmetic:
    rows = tuple(kernels.values())
    notes = (*(note for kernel in rows for note in kernel.notes), *release_note(spec))
    return Arithmetic(
        rows[0].multiplied,
        one_or_each({name: kernel.executed for name, kernel in kernels.items()}),
        "; ".join(dict.fromkeys(kernel.source for kernel in rows)),
        weakest(kernel.evidence for kernel in rows),
        tuple(dict.fromkeys(notes)),
    )
