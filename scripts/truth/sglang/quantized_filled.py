"""What SGLang's parameters hold, beside the tensors that a quantized checkpoint stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from truth.drafts import Directory
from truth.sglang.engine import Draft
from truth.sglang.observing import JOINED, SCALES_OF_CACHE, bare

LENT = "embed_tokens.weight"
"""Replaced by the target's, whatever is stored."""

SINGLE = ("weight_shape", "g_idx", "weight_g_idx")
"""Stored once for each of the projections that are joined, and kept once: the last one that is loaded."""

UNREAD = (".g_idx", ".qzeros")
"""Of GPTQ, where `desc_act` is false and `sym` is true: built, and left out by Marlin's layout."""

NOT_WEIGHTS = ("d2t", "t2d")


def differences(draft: Draft, directory: Directory) -> list[str]:
    """Parameters that do not hold what is stored, and stored tensors that are in none, sorted."""
    stored = {bare(name): tensor for name, tensor in directory.tensors.items() if name not in (*NOT_WEIGHTS, LENT)}
    return sorted(_differences(draft, stored, _unread(directory.config.get("quantization_config") or {})))


def _unread(section: Mapping[str, object]) -> tuple[str, ...]:
    marlin = str(section.get("quant_method")).startswith("gptq")
    return UNREAD if marlin and section.get("desc_act") is False and section.get("sym") is True else ()


def _differences(draft: Draft, stored: Mapping[str, Tensor], unread: Sequence[str]) -> Iterator[str]:
    used: set[str] = set()
    for name, theirs in draft.tensors.items():
        sources = [source for source in _sources(bare(name)) if source in stored]
        used.update(sources)
        if bare(name) == LENT or name.endswith(SCALES_OF_CACHE):
            continue
        if len(sources) < len(_sources(bare(name))):
            if not name.endswith(tuple(unread)):
                yield f"{bare(name)} is filled by nothing" if not sources else f"{bare(name)} is filled in part"
        elif not _holds(bare(name), theirs, [stored[source] for source in sources]):
            yield f"{bare(name)} holds something else"
    for name in stored.keys() - used:
        if not name.endswith(".input_scale") or draft.quantization is None:
            yield f"{name} is dropped"


def _sources(name: str) -> list[str]:
    """Tensors that fill a parameter, in order."""
    for joined, parts in JOINED.items():
        if f".{joined}." in name:
            return [name.replace(f".{joined}.", f".{part}.") for part in parts]
    return [name]


def _holds(name: str, theirs: Tensor, mine: Sequence[Tensor]) -> bool:
    if name.endswith(SINGLE):
        return _same(theirs, mine[-1])
    if len(mine) == 1:
        return _same(theirs, mine[0])
    parts = [part.reshape(1) if not part.dim() else part for part in mine]
    return any(_same(theirs, whole) for axis in range(parts[0].dim()) if (whole := _joined(parts, axis)) is not None)


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor | None:
    shapes = {tuple(size for i, size in enumerate(part.shape) if i != axis) for part in parts}
    alike = len(shapes) == 1 and len({part.dtype for part in parts}) == 1
    return torch.cat(list(parts), dim=axis) if alike else None


def _same(theirs: Tensor, mine: Tensor) -> bool:
    """Equal numbers in the same dtype; floats of 16 bits and more may be stored in another one that holds them all.

    float16 and bfloat16 may stand for each other: what config.json says is the model's dtype, whatever is stored.
    """
    if theirs.dtype != mine.dtype and not all(_wide(tensor) for tensor in (theirs, mine)):
        return False
    if theirs.element_size() == mine.element_size():
        mine = mine.to(theirs.dtype)
    if theirs.squeeze().shape != mine.squeeze().shape:
        return False
    return torch.equal(theirs.squeeze().double(), mine.squeeze().double())


def _wide(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() > 1
