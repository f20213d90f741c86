"""Rotary embeddings: one frequency table and two multipliers per kind.

The engines (vLLM, SGLang, TensorRT-LLM) agree on everything here unless a comment says
otherwise. Angles are computed in float64 and only the finished tables are cast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from draftconv.drafter.facts import Rope
from draftconv.errors import Undecided, UsageError

Number = int | float


@dataclass(frozen=True, slots=True)
class Rotary:
    """The rotary embedding of one attention: radians per position [F] in float64, and what its tables are scaled by."""

    frequency_F: Tensor
    multiplier: float
    pairs: Literal["halves", "interleaved"]

    @classmethod
    def of(cls, rope: Rope, dim: int, *, latent: bool) -> Self:
        """For heads of which `dim` elements turn; `latent` as in `table_multiplier`.

        Raises:
            UsageError, Undecided: see `inverse_frequencies`.
        """
        return cls(inverse_frequencies(rope, dim), table_multiplier(rope, latent=latent), rope.pairs)

    def __call__(self, x_BTND: Tensor, position_BT: Tensor) -> Tensor:
        """The same rows, each turned by its position: [T], or [1, T] or [B, T]."""
        frequency_F = self.frequency_F.to(x_BTND.device)
        return rotate(x_BTND, position_BT, frequency_F, pairs=self.pairs, multiplier=self.multiplier)


def inverse_frequencies(rope: Rope, dim: int) -> Tensor:
    """Radians per position of each rotated pair.

    Returns:
        float64 tensor of shape [dim / 2].

    Raises:
        UsageError: the kind is unknown.
        Undecided: a parameter that the kind needs is missing.
    """
    try:
        scale = _KINDS[rope.kind]
    except KeyError:
        raise UsageError(
            f"rope kind {rope.kind!r} has no reference forward",
            cure=f"known kinds: {', '.join(sorted(_KINDS))}",
        ) from None
    return scale(rope, dim)


def table_multiplier(rope: Rope, *, latent: bool) -> float:
    """What cos and sin are multiplied by; 1 for every kind but YaRN.

    Llama-style (`latent` False): `attention_factor` if given, else the ratio of both
    mscales if both are given, else 0.1 ln(factor) + 1. MLA (`latent` True): the ratio,
    with a missing `mscale` read as 1 and a missing `mscale_all_dim` as 0.
    """
    if rope.kind not in _YARN:
        return 1.0
    factor = _number(rope, "factor")
    if latent:
        return _mscale(factor, _number(rope, "mscale", 1)) / _mscale(factor, _number(rope, "mscale_all_dim", 0))
    if "attention_factor" in rope.scaling:
        return _number(rope, "attention_factor")
    extra = _number(rope, "attn_factor", 1)
    if "mscale" in rope.scaling and "mscale_all_dim" in rope.scaling:
        return extra * _mscale(factor, _number(rope, "mscale")) / _mscale(factor, _number(rope, "mscale_all_dim"))
    return extra * _mscale(factor, 1)


def softmax_multiplier(rope: Rope) -> float:
    """What an MLA drafter's softmax scale is multiplied by: ms(factor, mscale_all_dim) squared."""
    if rope.kind not in _YARN:
        return 1.0
    return _mscale(_number(rope, "factor"), _number(rope, "mscale_all_dim", 0)) ** 2


def rotate(
    x_BTND: Tensor,
    position_BT: Tensor,
    frequency_F: Tensor,
    *,
    pairs: Literal["halves", "interleaved"],
    multiplier: float,
) -> Tensor:
    """Rotate every pair of `x_BTND` (D = 2F) by its position; the element order is kept."""
    angle_BTF = position_BT.to(torch.float64)[..., None] * frequency_F
    cos = (angle_BTF.cos() * multiplier).to(x_BTND.dtype)[..., None, :]
    sin = (angle_BTF.sin() * multiplier).to(x_BTND.dtype)[..., None, :]
    if pairs == "halves":
        a, b = x_BTND.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    a, b = x_BTND[..., 0::2], x_BTND[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def _steps(dim: int) -> Tensor:
    # The device is named because models are built under torch.device("meta").
    return torch.arange(dim // 2, dtype=torch.float64, device="cpu")


def _geometric(theta: float, dim: int) -> Tensor:
    return theta ** -(_steps(dim) * 2 / dim)


def _default(rope: Rope, dim: int) -> Tensor:
    return _geometric(rope.theta, dim)


def _linear(rope: Rope, dim: int) -> Tensor:
    return _geometric(rope.theta, dim) / _number(rope, "factor")


def _dynamic(rope: Rope, dim: int) -> Tensor:
    """NTK-aware base as vLLM and SGLang build it: once, for the fully extended context.

    transformers instead grows the base with the running sequence length.
    """
    factor = _number(rope, "factor")
    grown: float = rope.theta * (factor * factor - (factor - 1)) ** (dim / (dim - 2))
    return _geometric(grown, dim)


def _llama3(rope: Rope, dim: int) -> Tensor:
    """Long wavelengths are divided by `factor`, short ones kept, the band between blended."""
    factor = _number(rope, "factor")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    original = _number(rope, "original_max_position_embeddings")
    plain_F = _geometric(rope.theta, dim)
    turns_F = original * plain_F / (2 * math.pi)
    keep_F = ((turns_F - low) / (high - low)).clamp(0, 1)
    return plain_F / factor * (1 - keep_F) + plain_F * keep_F


def _yarn(rope: Rope, dim: int) -> Tensor:
    """Pairs that turn often within the original context are kept, slow ones divided by `factor`."""
    factor = _number(rope, "factor")
    original = _number(rope, "original_max_position_embeddings")

    def pair_turning(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_turning(_number(rope, "beta_fast", 32)), pair_turning(_number(rope, "beta_slow", 1))
    if rope.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = max(high - low, 0.001)  # the engines' guard against a band of no width
    plain_F = _geometric(rope.theta, dim)
    keep_F = 1 - ((_steps(dim) - low) / width).clamp(0, 1)
    return plain_F / factor * (1 - keep_F) + plain_F * keep_F


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def _number(rope: Rope, key: str, default: Number | None = None) -> float:
    value = rope.scaling.get(key, default)
    if isinstance(value, int | float):
        return float(value)
    raise Undecided(
        f"rope kind {rope.kind!r} needs the number {key!r}, the configuration has {value!r}",
        why="every position would be rotated by the wrong angle",
        cure=f"add {key!r} to rope_scaling in config.json",
    )


_YARN = frozenset({"yarn", "deepseek_yarn"})
_KINDS: Mapping[str, Callable[[Rope, int], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "deepseek_yarn": _yarn,
}
