"""The tensors of one module as a checkpoint has them, not yet trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftconv.checkpoint import show, show_some
from draftconv.errors import BadCheckpoint, UsageError

TORCH: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}
SPELLED: Mapping[torch.dtype, str] = {dtype: name for name, dtype in TORCH.items()}
"""A dtype as safetensors spells it."""

FLOAT = ("F32", "F16", "BF16")
"""What scales are stored in."""

BIAS = "bias"
"""Belongs to a module and not to its quantization: never touched, never in the way."""


@dataclass(frozen=True, slots=True)
class ModuleTensors:
    """The tensors of one module by suffix; `title` says in messages which format they are read as."""

    title: str
    by_suffix: Mapping[str, Tensor]

    def only(self, *known: str) -> None:
        """Raises BadCheckpoint if there are other tensors than `known` and a bias: they would be lost."""
        if others := sorted(self.by_suffix.keys() - {*known, BIAS}):
            raise BadCheckpoint(
                f"{self.title} has no {show_some(others)}",
                why="a tensor that is not read changes what the weight stands for",
                cure="quantization_config does not describe this module",
            )

    def get(self, suffix: str, dtypes: tuple[str, ...], *shape: int | None) -> Tensor:
        """One tensor of one of these dtypes and of this shape, None for any size.

        Raises:
            BadCheckpoint: it is absent or something else.
        """
        tensor = self.by_suffix.get(suffix)
        expected = f"{' or '.join(dtypes)} [{', '.join('any' if size is None else str(size) for size in shape)}]"
        if tensor is None:
            raise BadCheckpoint(
                f"{suffix} is missing",
                why=f"{self.title} keeps {expected} there",
                cure="export the checkpoint again",
            )
        fits = len(shape) == tensor.ndim and all(
            size in (None, actual) and actual > 0 for size, actual in zip(shape, tensor.shape, strict=True)
        )
        if SPELLED.get(tensor.dtype) not in dtypes or not fits:
            stored = f"{SPELLED.get(tensor.dtype, tensor.dtype)} {show(list(tensor.shape))}"
            raise BadCheckpoint(
                f"{suffix} is {stored}, not {expected}",
                why=f"{self.title} has no such tensor",
                cure="the checkpoint is damaged, or quantization_config is another one's",
            )
        return tensor

    def optional(self, suffix: str, dtypes: tuple[str, ...], *shape: int | None) -> Tensor | None:
        """As `get`, None if it is absent."""
        return self.get(suffix, dtypes, *shape) if suffix in self.by_suffix else None

    def scalar(self, suffix: str) -> Tensor:
        """A scale of a whole tensor, float32 [].

        Raises:
            BadCheckpoint: it is absent, of another shape, or no positive number.
        """
        scale = self.get(suffix, FLOAT).float()
        if not (scale.isfinite() and scale > 0):
            raise BadCheckpoint(f"{suffix} is {scale.item()}, not a scale", cure="export the checkpoint again")
        return scale


def calibrated(scale: Tensor | None, title: str) -> Tensor:
    """The scale of static activations, as it is stored: float32 [].

    Raises:
        UsageError: there is none.
    """
    if scale is None:
        raise UsageError(
            f"{title} stores a scale of activations and none is given",
            why="it comes from calibration and cannot be made up",
        )
    return scale.float().reshape(())
