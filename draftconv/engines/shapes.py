"""Sizes that kernels ask for, per tensor-parallel rank.

A weight of [outputs, inputs] is cut along its outputs (q, k, v, gate, up and MLA's b
projections) or along its inputs (o, down); others are whole on every rank. `shapes` of an
engine's package holds what must divide what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from draftconv.drafter.facts import Facts, Gqa
from draftconv.drafter.tensors import expected
from draftconv.engines.deployed import Deployment
from draftconv.engines.hardware import CHIPS, Chip
from draftconv.engines.kernels import FP8_TOKEN
from draftconv.engines.module_names import Module, modules
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec, Evidence
from draftconv.quantization.recipes import FormatName

Along = Literal["outputs", "inputs"]

BY_OUTPUT = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "q_b_proj", "kv_b_proj")
BY_INPUT = ("o_proj", "down_proj")
"""Projections by how tensor parallelism cuts them."""


INT4: tuple[FormatName, ...] = ("compressed-pack", "gptq", "autoawq", "quark-int4")


@dataclass(frozen=True, slots=True)
class Shape:
    """One kernel's demand.

    Attributes:
        along: which side of the weight; `joined`: whether of the fused module or of each projection in it.
        multiple: what must divide it; None is the group of the scheme.
        fp8: for FP8 activations only (True), for the others only (False).
        refused: whether the engine stops; otherwise it takes another kernel.
    """

    formats: tuple[FormatName, ...]
    along: Along
    multiple: int | None
    says: str
    source: str
    evidence: Evidence = "read"
    chips: tuple[Chip, ...] = ()
    joined: bool = True
    fp8: bool | None = None
    refused: bool = True


@dataclass(frozen=True, slots=True)
class Shapes:
    """What the kernels of one engine demand of sizes.

    Attributes:
        uncopied: formats whose scales do not go along where key heads are copied to several ranks, and why that is
            known.
    """

    rows: tuple[Shape, ...] = ()
    uncopied: Mapping[FormatName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShapeFault:
    """One size that a kernel does not take.

    Attributes:
        module: as the engine calls it, without its layer's number from the target's.
        says: the sizes, and what they should be a multiple of.
        refused: whether the engine stops; otherwise it takes another kernel.
    """

    module: str
    says: str
    source: str
    evidence: Evidence
    refused: bool = True


def shape_faults(
    spec: EngineSpec, deployment: Deployment, facts: Facts, quantized: Collection[str], tp: int = 1
) -> tuple[ShapeFault, ...]:
    """Sizes of a quantized drafter that the engine's kernels do not take.

    Without hardware in `spec`, those of all of the engine's hardware.

    Args:
        quantized: canonical weights, with or without `.weight`.
        tp: ranks of tensor parallelism.
    """
    weights = {name.removesuffix(".weight") for name in quantized}
    if unshared := (*uneven(spec, facts, tp), *_uncopied(spec, facts, deployment, tp)):
        return unshared
    hardware = (spec.hardware,) if spec.hardware else ENGINES[spec.name].hardware
    chips = {CHIPS[name] for name in hardware}
    faults: dict[tuple[str, str], ShapeFault] = {}
    for module in modules(spec, facts, 0):
        if weights.issuperset(module.parts):
            for shape in ENGINES[spec.name].shapes.rows:
                if _applies(shape, deployment, chips):
                    for fault in _misfits(shape, module, facts, deployment, tp):
                        faults.setdefault((fault.module, fault.says), fault)
    return tuple(faults.values())


def _applies(shape: Shape, deployment: Deployment, chips: set[Chip]) -> bool:
    return (
        deployment.format in shape.formats
        and (not shape.chips or not chips.isdisjoint(shape.chips))
        and shape.fp8 in (None, deployment.scheme.inputs == FP8_TOKEN)
    )


def uneven(spec: EngineSpec, facts: Facts, tp: int) -> Iterator[ShapeFault]:
    """Sizes of a drafter, quantized or not, that cannot be shared out at all."""
    source = f"{spec.name}: parallel linear layers"
    attention = facts.attention
    for what, size in (("attention heads", attention.heads), ("intermediate_size", facts.intermediate)):
        if size % tp:
            yield ShapeFault("drafter", f"{size} {what} cannot be shared by {tp} ranks", source, "read")
    if isinstance(attention, Gqa) and attention.kv_heads % tp and tp % attention.kv_heads:
        yield ShapeFault("drafter", f"{attention.kv_heads} key heads cannot be shared by {tp} ranks", source, "read")


def _uncopied(spec: EngineSpec, facts: Facts, deployment: Deployment, tp: int) -> Iterator[ShapeFault]:
    """Key heads that are copied to several ranks, where their scales are not."""
    if not isinstance(facts.attention, Gqa):
        return
    few, source = facts.attention.kv_heads, ENGINES[spec.name].shapes.uncopied.get(deployment.format)
    if tp > few and tp % few == 0 and source:
        yield ShapeFault(
            "drafter", f"{few} key heads are copied to {tp} ranks, but not the scales of INT4 weights", source, "read"
        )


def _misfits(shape: Shape, module: Module, facts: Facts, deployment: Deployment, tp: int) -> Iterator[ShapeFault]:
    multiple = shape.multiple or deployment.scheme.weights.group
    if multiple is None:
        return
    sizes = {part: _per_rank(part, facts, tp) for part in module.parts}
    if shape.along == "inputs":
        checked = {module.name: sizes[module.parts[0]][1]}
    elif shape.joined:
        checked = {module.name: sum(rows for rows, _ in sizes.values())}
    else:
        checked = {part: rows for part, (rows, _) in sizes.items()}
    for name, size in checked.items():
        if size % multiple:
            ranks = f" per rank of {tp}" if tp > 1 else ""
            says = f"{size} {shape.along}{ranks} are no multiple of {multiple}: {shape.says}"
            yield ShapeFault(
                name.replace("model.layers.", "layers."), says, shape.source, shape.evidence, shape.refused
            )


def _per_rank(part: str, facts: Facts, tp: int) -> tuple[int, int]:
    """[outputs, inputs] of one projection on one rank; key heads are copied where there are too few."""
    rows, columns = _shapes(facts)[part]
    leaf = part.rpartition(".")[2]
    if leaf in ("k_proj", "v_proj") and isinstance(facts.attention, Gqa):
        return max(rows // tp, facts.attention.head_dim), columns
    if leaf in BY_OUTPUT:
        return rows // tp, columns
    return (rows, columns // tp) if leaf in BY_INPUT else (rows, columns)


def _shapes(facts: Facts) -> Mapping[str, tuple[int, int]]:
    tensors = expected(facts)
    return {
        name.removesuffix(".weight"): (tensor.shape[0], tensor.shape[1])
        for name, tensor in tensors.items()
        if name.endswith(".weight") and len(tensor.shape) == 2
    }
