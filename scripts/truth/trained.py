"""What a drafter is, whatever an engine makes of it: its facts, and the values that its tensors stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef
from draftconv.drafter.checks import target_table
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.targets import EMBED_NAMES, HEAD_NAMES, Target
from draftconv.quantization.computations import floats
from draftconv.quantization.weight_detection import find_quantized
from draftconv.reference.load import to_torch

TABLES = {"embed_tokens.weight": EMBED_NAMES, "lm_head.weight": HEAD_NAMES}
"""What a target lends, and what it calls them."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What a drafter is, beside a target.

    Attributes:
        tensors: canonical name → values in bfloat16, d2t in int64; what is quantized as the floats it stands for.
        ids: target id of every draft id, int64 [Vd], where the vocabulary is reduced.
    """

    facts: Facts
    tensors: Mapping[str, Tensor]
    target: Target
    ids: Tensor | None = None

    @classmethod
    def of(cls, drafter: Drafter, facts: Facts, target: Target) -> Truth:
        """Of a drafter's own files; `facts` may say more than they do."""
        refs = {name: ref for name, ref in drafter.tensors.items() if name != "t2d"}
        quantized: dict[str, Tensor] = {}
        if facts.quantization:
            stored = find_quantized(drafter)
            quantized = {f"{module}.weight": floats(stored.load(module)) for module in stored.modules}
        for name, names in TABLES.items():
            table = target_table(target, names)
            if name not in refs and table is not None:
                refs[name] = table
        plain = {name: _values(ref) for name, ref in refs.items() if name not in quantized}
        return cls(
            facts,
            {name: t.bfloat16() if t.is_floating_point() else t for name, t in {**plain, **quantized}.items()},
            target,
            _ids(drafter) if facts.reduced_vocab else None,
        )

    def filled(self) -> dict[str, Tensor]:
        """What the reference forward is filled with: d2t as offsets, whatever the file spells it as."""
        tensors = {name: tensor for name, tensor in self.tensors.items() if name != "d2t"}
        return tensors if self.ids is None else {**tensors, "d2t": self.ids - torch.arange(len(self.ids))}


def _ids(drafter: Drafter) -> Tensor | None:
    maps = drafter.maps.map if drafter.maps else None
    return None if maps is None or maps.ids is None else torch.tensor(maps.ids, dtype=torch.int64)


def _values(ref: TensorRef) -> Tensor:
    if ref.dtype in ("I64", "I32"):
        raw = bytearray(ref.nbytes)
        ref.file.readinto(ref.offset, memoryview(raw))
        return torch.frombuffer(raw, dtype=torch.int64 if ref.dtype == "I64" else torch.int32).long()
    return to_torch(ref)
