"""Quantized weights of an output, by what they stand for, and by the bytes that their source gives when made again.

Packed anew or dequantized they are the same values, bit for bit. A rounded one must be the nearest that its scales
allow; what the scales must be, only making it again by the recorded recipe tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftconv.checkpoint import Computed, PlannedTensor, TensorRef
from draftconv.conversion.working_drafter import output_blocks
from draftconv.drafter.drafter import Drafter
from draftconv.errors import DraftconvError
from draftconv.quantization.exclusions import WEIGHT
from draftconv.verification.claims import Claims, claimed
from draftconv.verification.compared import ComparedItem
from draftconv.verification.recorded_steps import rounded_by_gptq
from draftconv.verification.remaking import Remade
from draftconv.verification.stated_quantization import stated

if TYPE_CHECKING:
    from draftconv.quantization.quantized_weights import QuantizedWeights
    from draftconv.quantization.scheme import WeightScheme

ROUNDED = ("replaced", "requantized")
"""Kinds of changes after which a weight may stand for other values."""


@dataclass(frozen=True, slots=True)
class QuantizedComparison:
    """The weights that are quantized on one side or on both.

    Attributes:
        faults: what cannot be read; all tensors are then compared byte by byte.
        by_gptq: weights that the record says GPTQ rounded, and under which scheme.
    """

    out: Drafter
    source: Drafter
    remade: Remade
    claims: Claims
    mine: QuantizedWeights | None
    theirs: QuantizedWeights | None
    faults: tuple[ComparedItem, ...]
    by_gptq: Mapping[str, WeightScheme]

    @classmethod
    def of(cls, out: Drafter, source: Drafter, remade: Remade, claims: Claims) -> QuantizedComparison:
        """Find out how the weights of both are stored."""
        from draftconv.quantization.weight_detection import find_quantized

        weights: list[QuantizedWeights | None] = []
        faults = []
        sides = ((out, "the output", None), (source, "the source", claims.evidence.from_format))
        for drafter, where, from_format in sides:
            try:
                weights.append(find_quantized(drafter, from_format) if drafter.facts.quantization else None)
            except DraftconvError as error:
                weights = [None, None]
                faults.append(ComparedItem("quantized weights", "different", f"{where} cannot be read: {error.what}"))
                break
        # Two that cannot be read may still be the same bytes.
        alike = out.facts.quantization == source.facts.quantization
        by_gptq = rounded_by_gptq(claims.lineage, source.facts)
        return cls(out, source, remade, claims, weights[0], weights[1], () if alike else tuple(faults), by_gptq)

    def rows(self) -> Iterator[ComparedItem]:
        """What is said of all weights together."""
        yield from self.faults
        known = self.theirs.lies if self.theirs else ()
        for finding in self.mine.lies if self.mine else ():
            if finding not in known:
                yield ComparedItem("quantized weights", "different", finding)
        yield from stated(self.out, self.remade, self.claims, (self.mine, self.theirs))

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical, such as `layers.0.mlp.down_proj`."""
        return tuple(sorted({name for stored in (self.mine, self.theirs) if stored for name in stored.modules}))

    def parts(self, module: str) -> frozenset[str]:
        """The tensors of a weight on either side, and those that it must have."""
        suffixes = {s for stored in (self.mine, self.theirs) if stored for s in stored.modules.get(module, ())}
        names = {f"{module}.{suffix}" for suffix in suffixes | {WEIGHT.removeprefix(".")}}
        return frozenset(names | self._wanted(module).keys())

    def compare(self, module: str) -> ComparedItem:
        """One weight."""
        from draftconv.quantization.compare_weights import compare

        name = f"{module}{WEIGHT}"
        if (pruned := self.remade.why(name, "pruned")) is not None:
            return self._compare_pruned(module, pruned)
        mine, theirs = _side(self.out, self.mine, module), _side(self.source, self.theirs, module)
        if mine is None or theirs is None:
            return ComparedItem(name, "different", "missing from the output" if mine is None else "not in the source")
        again = self._why(name, "requantized") is not None
        comparison = compare(module, mine, theirs, again=again, by_gptq=self.by_gptq.get(name))
        changed = self._changed(module)
        parts = ", ".join(part.removeprefix(f"{module}.") for part in changed)
        than = "draftconv.json was written for" if self.remade.fault else "when it is made again from the source"
        if comparison.fault:
            remark = f"; {parts}: other bytes than {than}" if parts else ""
            return ComparedItem(name, "different", comparison.fault + remark)
        if changed:
            return ComparedItem(name, "different", f"{parts}: other bytes than {than}")
        if comparison.same:
            return ComparedItem(name, "equal", comparison.how)
        if self._is_remade(module):
            return ComparedItem(name, "declared", comparison.how)
        if self._why(name, *ROUNDED) is not None:
            rest = "which values" if name in self.by_gptq else "how its scales were found"
            return claimed(name, f"{comparison.how}; {rest}")
        return ComparedItem(name, "different", f"{comparison.how}; undeclared")

    def _compare_pruned(self, module: str, why: str) -> ComparedItem:
        """A head of which rows were left out: the others must have the integers and scales of the source."""
        tensors = {**self.out.tensors, **self.out.qparams}
        parts = self.parts(module) & tensors.keys()
        changed = _unequal({name: tensors[name] for name in sorted(parts)}, self._parts_of(module))
        name = f"{module}{WEIGHT}"
        if changed:
            listed = ", ".join(part.removeprefix(f"{module}.") for part in changed)
            return ComparedItem(name, "different", f"{listed}: other bytes than the rows of the source that stay")
        return ComparedItem(name, "declared", f"pruned: {why}")

    def _why(self, name: str, *kinds: str) -> str | None:
        """A change that was made again, or that the record tells of where nothing can be."""
        return self.remade.why(name, *kinds) or (self.claims.said(name, *kinds) if self.remade.fault else None)

    def _is_remade(self, module: str) -> bool:
        """Whether a step that was made again changed this weight."""
        return self.remade.why(f"{module}{WEIGHT}", *ROUNDED) is not None

    def _wanted(self, module: str) -> Mapping[str, PlannedTensor]:
        """What a weight must be stored as, when a step of the record changed it."""
        return self._parts_of(module) if self._is_remade(module) else {}

    def _parts_of(self, module: str) -> Mapping[str, PlannedTensor]:
        """The tensors that the steps of the record make of a weight."""
        parts = ((name, t) for name, t in self.remade.work.tensors.items() if not name.endswith(".bias"))
        return {name: tensor for name, tensor in parts if name.rpartition(".")[0] == module}

    def _changed(self, module: str) -> list[str]:
        """Parts that are not what they must be, or not what the record holds a hash of where nothing is made again."""
        tensors = {**self.out.tensors, **self.out.qparams}
        mine = {name: tensors[name] for name in sorted(self.parts(module) & tensors.keys())}
        if self.remade.fault:
            return [name for name, ref in mine.items() if self.claims.has_changed(name, ref)]
        return _unequal(mine, self._wanted(module)) if self._is_remade(module) else []


def _side(drafter: Drafter, stored: QuantizedWeights | None, module: str) -> QuantizedWeights | TensorRef | None:
    """Where a weight is to be had from."""
    return stored if stored and module in stored.modules else drafter.tensors.get(f"{module}{WEIGHT}")


def _unequal(mine: Mapping[str, TensorRef], wanted: Mapping[str, PlannedTensor]) -> list[str]:
    """Parts of a weight that are not what they must be."""
    outputs: dict[int, Mapping[str, memoryview | bytes]] = {}
    found = sorted(mine.keys() ^ wanted.keys())
    for name in sorted(mine.keys() & wanted.keys()):
        tensor, ref = wanted[name], mine[name]
        match tensor.operation:
            case Computed(computation, part):
                if id(computation) not in outputs:
                    outputs[id(computation)] = computation.run()
                data = bytes(outputs[id(computation)][part])
            case _:
                data = b"".join(output_blocks(tensor))
        if (ref.dtype, ref.shape) != (tensor.dtype, tensor.shape) or ref.read() != data:
            found.append(name)
    return sorted(found)
