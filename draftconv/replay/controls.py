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

from draftconv.drafter.facts import Fusion
from draftconv.drafter.tensors import HEAD
from draftconv.quantization.exclusions import select
from draftconv.quantization.pack_int32 import pack, unpack
from draftconv.quantization.recipes import find_recipe
from draftconv.quantization.rounding import RoundedWeight, dequantize, quantize
from draftconv.reference.drafter import DrafterModel
from draftconv.replay.replay import Arm

INT4 = "quark-w4a8"
"""Recipe of the INT4 twin: the published W4A8 drafter's."""
PROJECTION = "layers.0.mlp.down_proj.weight"
SEED = 20

Base = Literal["as it is", "int4"]


@dataclass(frozen=True, slots=True)
class ControlSubject:
    """What is broken: a drafter, and its INT4 twin.

    Attributes:
        layers: decoder layers of the target. `trace_boundaries`: those that the trace could feed it.
        qvalues: what the twin has in place of some weights, by canonical name.
    """

    arm: Arm
    layers: int
    trace_boundaries: tuple[int, ...]
    qvalues: Mapping[str, RoundedWeight]

    @property
    def model(self) -> DrafterModel:
        return self.arm.model

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


def _shift_boundaries(by: int) -> Callable[[ControlSubject], Arm | str]:
    def apply(of: ControlSubject) -> Arm | str:
        shifted = tuple(boundary + by for boundary in of.arm.boundaries)
        if beyond := [boundary for boundary in shifted if not 0 <= boundary <= of.layers]:
            return f"the target has no boundary {beyond[0]}"
        if missing := [boundary for boundary in shifted if boundary not in of.trace_boundaries]:
            every = ",".join(map(str, sorted({*of.trace_boundaries, *shifted})))
            return f"the trace lacks boundary {missing[0]}: make one with --boundaries {every}"
        return replace(of.arm, boundaries=shifted)

    return apply


def _zero_map(of: ControlSubject) -> Arm | str:
    if not of.model.facts.reduced_vocab:
        return "it drafts the whole vocabulary, without a map"
    return replace(of.arm, model=of.model.changed(tensors={"d2t": torch.zeros_like(of.model.d2t)}))


def _double_scales(of: ControlSubject) -> Arm | str:
    weight = of.qvalues[PROJECTION]
    return of.with_qvalues({PROJECTION: replace(weight, scale=weight.scale * 2)})


def _other_feedback(of: ControlSubject) -> Arm | str:
    other: Literal["pre-norm", "post-norm"] = "pre-norm" if of.model.facts.feedback == "post-norm" else "post-norm"
    return replace(of.arm, model=of.model.changed(replace(of.model.facts, feedback=other)))


def _lost_fusion(of: ControlSubject) -> Arm | str:
    plain: Fusion = "plain"
    if of.model.facts.fusion == plain:
        return "nothing norms its states before fc"
    return replace(of.arm, model=of.model.changed(replace(of.model.facts, fusion=plain)))


def _rope_base(of: ControlSubject) -> Arm | str:
    rope = replace(of.model.facts.rope, theta=of.model.facts.rope.theta * 100)
    return replace(of.arm, model=of.model.changed(replace(of.model.facts, rope=rope)))


def _rope_pairs(of: ControlSubject) -> Arm | str:
    pairs: Literal["halves", "interleaved"] = "halves" if of.model.facts.rope.pairs == "interleaved" else "interleaved"
    rope = replace(of.model.facts.rope, pairs=pairs)
    return replace(of.arm, model=of.model.changed(replace(of.model.facts, rope=rope)))


def _random_head(of: ControlSubject) -> Arm | str:
    head = of.model.lm_head.weight
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(head.shape, generator=generator).to(head) * head.std()
    return replace(of.arm, model=of.model.changed(tensors={HEAD: noise}))


def _permuted_nibbles(of: ControlSubject) -> Arm | str:
    if any(weight.qvalues.shape[1] % 8 for weight in of.qvalues.values()):
        return "its projections do not fill words of eight nibbles"
    return of.with_qvalues({name: replace(w, qvalues=_misread(w.qvalues)) for name, w in of.qvalues.items()})


def _misread(qvalues: Tensor) -> Tensor:
    """Quantized values written in natural order and read as `reorder`: the label of Quark's file-to-file export."""
    return unpack(pack(qvalues, "order"), "reorder")


FAULTS: tuple[PlantedFault, ...] = (
    PlantedFault("boundaries - 1", "every state is captured one layer too early", _shift_boundaries(-1)),
    PlantedFault("boundaries + 1", "every state is captured one layer too late", _shift_boundaries(1)),
    PlantedFault("d2t zeroed", "row v of the head is taken for token v of the target", _zero_map),
    PlantedFault("doubled scales", "all scales of down_proj are doubled", _double_scales, "int4"),
    PlantedFault("feedback norm", "norm_output is read as the opposite", _other_feedback),
    PlantedFault("fusion norm", "the norms before fc are left out", _lost_fusion),
    PlantedFault("rope base", "rope_theta is a hundred times as large", _rope_base),
    PlantedFault("rope pairs", "interleaved pairs are rotated as halves, or halves as interleaved pairs", _rope_pairs),
    PlantedFault("random lm_head", "the head holds noise of the same size", _random_head),
    PlantedFault(
        "permuted nibbles", "INT4 words in natural order are read in Quark's `reorder`", _permuted_nibbles, "int4"
    ),
)
