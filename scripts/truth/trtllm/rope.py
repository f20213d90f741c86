"""RopeParams.from_config and the tables that are made from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from truth.trtllm.config import FAMILIAR
from truth.trtllm.outcome import RaisedError, Rope
from truth.trtllm.source import ROPE, ROPE_TABLES


def rope_of(config: Mapping[str, Any], *, latent: bool) -> Rope:
    """The rotary embedding of every layer.

    Raises:
        RaisedError: its type is unknown, or a table cannot be made.
    """
    scaling = config.get("rope_parameters")
    # get_hf_rope_theta could not be read: the attribute wins over rope_parameters, as its callers expect
    theta = config.get("rope_theta")
    if theta is None and scaling:
        theta = scaling.get("rope_theta")
    theta = 10000.0 if theta is None else theta
    if not isinstance(theta, int | float):
        raise RaisedError(f"rope_theta is {theta!r}", ROPE_TABLES.at("RopeEmbeddingUtils"))
    dim = _rotated(config)
    if config.get("max_position_embeddings") is None:
        raise RaisedError("no max_position_embeddings to make tables for", ROPE.at("RopeParams.from_config"))
    kind = "none"
    if scaling is not None:
        kind = str(scaling.get("type") or scaling.get("rope_type") or "none").lower()
        kind = "none" if kind == "default" else kind
        if kind not in FAMILIAR:
            raise RaisedError(f"rope type {kind!r} is unknown", ROPE_TABLES.at("RotaryScalingType.from_string"))
    frequencies, multiplier = _table(kind, float(theta), dim, scaling or {}, config)
    softmax = (
        _mscale(scaling.get("factor", 1.0), scaling.get("mscale_all_dim", 0.0)) ** 2 if scaling and latent else 1.0
    )
    return Rope(frequencies, multiplier, softmax, interleaved=latent)


def _rotated(config: Mapping[str, Any]) -> int:
    """How many elements of a head turn."""
    head_dim = config.get("head_dim")
    if not isinstance(head_dim, int):
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    share = config.get("rotary_pct") or config.get("partial_rotary_factor") or 1.0
    named = config.get("rotary_dim") or config.get("rotary_emb_base") or config.get("qk_rope_head_dim")
    return int(named or int(head_dim * share))


def _table(
    kind: str, theta: float, dim: int, scaling: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[tuple[float, ...], float]:
    """RopeEmbeddingUtils: radians per position of each pair, and what cos and sin are multiplied by."""
    plain = [theta ** -(2 * i / dim) for i in range(dim // 2)]
    factor = float(scaling.get("factor", 1.0))
    original = config.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings") or 1024
    match kind:
        case "yarn":
            kept = _kept(dim, theta, original, scaling.get("beta_fast", 32), scaling.get("beta_slow", 1))
            turned = [f / factor * (1 - k) + f * k for f, k in zip(plain, kept, strict=True)]
            mscale = _mscale(factor, scaling.get("mscale", 1.0)) / _mscale(factor, scaling.get("mscale_all_dim", 0.0))
            return tuple(turned), mscale
        case "llama3":
            low, high = scaling.get("low_freq_factor", 1.0), scaling.get("high_freq_factor", 4.0)
            return tuple(_llama3(f, factor, low, high, original) for f in plain), 1.0
        case "dynamic":
            base = theta * scaling.get("alpha", 1.0) ** (dim / (dim - 2))
            return tuple(base ** -(2 * i / dim) for i in range(dim // 2)), 1.0
        case "linear":
            return tuple(f / factor for f in plain), 1.0
        case "longrope":
            raise RaisedError("longrope is not read", ROPE_TABLES.at("create_sinusoidal_positions_long_rope"))
        case _:
            # other types only pass `scale` on, which the table multiplies by
            return tuple(f * (factor if kind == "none" else 1.0) for f in plain), 1.0


def _kept(dim: int, theta: float, original: float, fast: float, slow: float) -> list[float]:
    def turning(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(turning(fast)), 0), min(math.ceil(turning(slow)), dim - 1)
    width = high - low if high != low else 0.001
    return [1 - min(max((i - low) / width, 0.0), 1.0) for i in range(dim // 2)]


def _llama3(frequency: float, factor: float, low: float, high: float, original: float) -> float:
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def _mscale(scale: float, mscale: float) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0
