"""From anything that `inspect` can read to a drafter that runs."""

from __future__ import annotations

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef
from draftconv.drafter.checks import target_table
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import EMBED_NAMES, HEAD_NAMES, Target
from draftconv.errors import Refused, UsageError
from draftconv.reference.drafter import DrafterModel

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
}


def load_drafter(drafter: Drafter, target: Target | None = None, *, dtype: torch.dtype = torch.float32) -> DrafterModel:
    """Load an opened drafter's weights into the reference forward.

    Args:
        target: where the embedding or head comes from that the drafter does not store.
        dtype: of every floating parameter.

    Raises:
        Refused: it is quantized, or its vocabulary map is not usable.
        UsageError: a table is missing and no target with weights is given.
        BadCheckpoint: tensors and facts do not fit.
    """
    facts = drafter.facts
    if facts.quantization:
        raise Refused(f"the reference forward runs unquantized drafters, this one is {facts.quantization}")
    tensors = {name: to_torch(ref) for name, ref in drafter.tensors.items()}
    if facts.reduced_vocab:
        if drafter.maps is None or drafter.maps.map is None:
            raise Refused("the vocabulary is reduced and its map is missing or not usable")
        ids = torch.tensor(drafter.maps.map.ids, dtype=torch.int64)
        tensors["d2t"] = ids - torch.arange(len(ids))
    embed = None if facts.own_embedding else _lent(target, EMBED_NAMES, "embed_tokens")
    head = None if facts.own_head else _lent(target, HEAD_NAMES, "lm_head")
    return DrafterModel.from_tensors(facts, tensors, embed=embed, head=head, dtype=dtype)


def to_torch(ref: TensorRef) -> Tensor:
    """A tensor of the file, in its own dtype and shape, in memory of its own."""
    return torch.frombuffer(bytearray(ref.read()), dtype=TORCH_DTYPES[ref.dtype]).reshape(ref.shape)


def _lent(target: Target | None, names: tuple[str, ...], what: str) -> Tensor:
    if target is None:
        raise UsageError(
            f"the drafter stores no {what}",
            why="engines then use the target's",
            cure="give the target, with its weights",
        )
    table = target_table(target, names)
    if table is None:
        raise UsageError(f"the target {target.name} stores no {what} under a name draftconv knows")
    return to_torch(table)
