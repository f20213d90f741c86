"""From anything that `inspect` can read to a drafter that runs."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from types import MappingProxyType

import torch
from torch import Tensor

from draftconv.checkpoint import TensorRef, show
from draftconv.drafter.checks import target_table
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.kinds import kind_of
from draftconv.drafter.targets import EMBED_NAMES, HEAD_NAMES, Target
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.reference.drafter import DrafterModel

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def load_drafter(
    drafter: Drafter,
    target: Target | None = None,
    *,
    tables: Mapping[str, TensorRef] = MappingProxyType({}),
    computed: Mapping[str, Tensor] = MappingProxyType({}),
    dtype: torch.dtype = torch.float32,
) -> DrafterModel:
    """Load an opened drafter's weights into the reference forward.

    Args:
        target: where the embedding or head comes from that the drafter does not store.
        tables: tables that stand in for the drafter's own and the target's, by canonical name.
        computed: tensors that were computed and lie in no file, by canonical name.
        dtype: of every floating parameter.

    Raises:
        Refused: it is quantized, its vocabulary map is not usable, or its facts have no reference forward.
        UsageError: a table is missing and no target with weights is given.
        BadCheckpoint: tensors and facts do not fit.
    """
    facts = drafter.facts
    if facts.quantization:
        raise Refused(
            f"the reference forward runs unquantized drafters, this one is {facts.quantization}",
            why="what its integers stand for is decided by the engine that they were packed for",
            cure="load the drafter that it was made from",
        )
    refs = {name: ref for name, ref in drafter.tensors.items() if name not in ("d2t", "t2d")} | dict(tables)
    for name, names in ((EMBEDDING, EMBED_NAMES), (HEAD, HEAD_NAMES)):
        if name not in refs and name not in computed:
            refs[name] = _target_ref(target, names, name.removesuffix(".weight"))
    own = {name: tensor for name, tensor in computed.items() if name not in tables}
    tensors = {name: to_torch(ref) for name, ref in refs.items()} | own
    if facts.reduced_vocab:
        tensors["d2t"] = _offsets(drafter)
    return forward_of(facts).from_tensors(facts, tensors, dtype=dtype)


def forward_of(facts: Facts) -> type[DrafterModel]:
    """The forward pass of a drafter's kind."""
    forward: type[DrafterModel] = resolve_name(kind_of(facts).forward)
    return forward


def to_torch(ref: TensorRef) -> Tensor:
    """A float tensor of the file, in its own dtype and shape, in memory of its own.

    Raises:
        BadCheckpoint: it holds no F64, F32, F16 or BF16.
    """
    if ref.dtype not in TORCH_DTYPES:
        raise BadCheckpoint(
            f"{show(ref.name)} is {ref.dtype}; the reference forward reads {', '.join(TORCH_DTYPES)}",
            why="a weight in another dtype needs scales that no config declares",
            cure="export it again unquantized",
        )
    if not ref.nbytes:
        return torch.empty(ref.shape, dtype=TORCH_DTYPES[ref.dtype])  # frombuffer takes no empty buffer
    raw = bytearray(ref.nbytes)
    ref.file.readinto(ref.offset, memoryview(raw))
    return torch.frombuffer(raw, dtype=TORCH_DTYPES[ref.dtype]).reshape(ref.shape)


def _offsets(drafter: Drafter) -> Tensor:
    """d2t as the reader understood it, whatever dtype holds it in the file: int64 [Vd]."""
    if drafter.maps is None or drafter.maps.map is None:
        raise Refused(
            "the vocabulary is reduced and its map is missing or not usable",
            why="drafted rows of the head could not be told to be which tokens of the target",
            cure="`draftconv inspect` says what is wrong with d2t and what mends it",
        )
    ids = torch.tensor(drafter.maps.map.ids, dtype=torch.int64)
    return ids - torch.arange(len(ids))


def _target_ref(target: Target | None, names: tuple[str, ...], what: str) -> TensorRef:
    if target is None:
        raise UsageError(
            f"the drafter stores no {what}",
            why="engines then use the target's",
            cure="give the target, with its weights",
        )
    table = target_table(target, names)
    if table is None:
        raise UsageError(
            f"the target {target.name} stores no {what} under a name draftconv knows",
            why=f"looked for: {', '.join(names)}",
            cure="give the target's own repository, whose tensors have these names",
        )
    return table
