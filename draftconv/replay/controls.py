"""Negative controls: drafters broken on purpose, each by a fault that engines do not report.

A parity check that lets one of them pass is broken itself. All of them must fail the
conversion gate, which wants equal counts; some cost so little accept length that a gate with
a margin of 2 % lets them pass, and that is worth knowing too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from draftconv.engines.replays import Misreading
from draftconv.quantization.exclusions import select
from draftconv.quantization.pack_int32 import pack, unpack
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.rounding import RoundedWeight, dequantize, quantize
from draftconv.replay.misreadings import MISREADINGS, MisreadSubject
from draftconv.replay.replay import Arm

INT4 = "quark-w4a8"
"""Recipe of the INT4 twin: the published W4A8 drafter's."""
PROJECTION = "layers.0.mlp.down_proj.weight"

Base = Literal["as it is", "int4"]


@dataclass(frozen=True, slots=True)
class ControlSubject(MisreadSubject):
    """What is broken: a drafter, and its INT4 twin.

    Attributes:
        qvalues: what the twin has in place of some weights, by canonical name.
    """

    qvalues: Mapping[str, RoundedWeight]

    def with_qvalues(self, changed: Mapping[str, RoundedWeight] = MappingProxyType({})) -> Arm:
        """The INT4 twin, some weights standing for other quantized values or scales."""
        dtype = self.model.fc.weight.dtype
        tensors = {name: dequantize(weight, dtype) for name, weight in {**self.qvalues, **changed}.items()}
        return replace(self.arm, model=self.model.changed(tensors=tensors))


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """One way to break a drafter.

    Attributes:
        base: what the broken drafter is compared with: the drafter as it is, or its INT4 twin.
        apply: the broken arm, or why this drafter cannot be broken so.
    """

    name: str
    says: str
    apply: Callable[[ControlSubject], Arm | str]
    base: Base = "as it is"


def subject(
    arm: Arm, layers: int, trace_boundaries: tuple[int, ...], stored: Mapping[str, torch.dtype] = MappingProxyType({})
) -> ControlSubject:
    """A drafter with the quantized values of its INT4 twin.

    Args:
        stored: as `simulate` takes it: the dtype in which a weight lies in its file.
    """
    recipe = find_recipe(INT4)
    weights = {name: arm.model.get_parameter(name).detach() for name in select(recipe, arm.model.facts).quantized}
    qvalues = {
        name: quantize(weight.to(stored.get(name, weight.dtype)), recipe.scheme.weights, name=name)
        for name, weight in weights.items()
    }
    return ControlSubject(arm, layers, trace_boundaries, qvalues)


# ── faults ─────────────────────────────────────────────────────────────────────────


def _double_scales(of: ControlSubject) -> Arm | str:
    weight = of.qvalues[PROJECTION]
    return of.with_qvalues({PROJECTION: replace(weight, scale=weight.scale * 2)})


def _permuted_nibbles(of: ControlSubject) -> Arm | str:
    if any(weight.qvalues.shape[1] % 8 for weight in of.qvalues.values()):
        return "its projections do not fill words of eight nibbles"
    return of.with_qvalues({name: replace(w, qvalues=_misread(w.qvalues)) for name, w in of.qvalues.items()})


def _misread(qvalues: Tensor) -> Tensor:
    """Quantized values written in natural order and read as `reorder`: the label of Quark's file-to-file export."""
    return unpack(pack(qvalues, "order"), "reorder")


def _misreading(name: Misreading) -> PlantedFault:
    row = MISREADINGS[name]
    return PlantedFault(row.name, row.says, row.apply)


FAULTS: tuple[PlantedFault, ...] = (
    _misreading("boundaries - 1"),
    _misreading("boundaries + 1"),
    _misreading("d2t zeroed"),
    PlantedFault("doubled scales", "all scales of down_proj are doubled", _double_scales, "int4"),
    _misreading("feedback norm"),
    _misreading("fusion norm"),
    _misreading("rope base"),
    _misreading("rope pairs"),
    _misreading("random lm_head"),
    PlantedFault(
        "permuted nibbles", "INT4 words in natural order are read in Quark's `reorder`", _permuted_nibbles, "int4"
    ),
)
