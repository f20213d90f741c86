"""What GPTQ and AutoAWQ have in common: weights stored input by input, with a zero point for every scale.

`scales` is [G, O] and `qzeros` I32 [G, O / 8]. A symmetric weight's zero points are all the same,
so every word of `qzeros` is: engines that are told of symmetry do not look at them, the others
(AutoAWQ's kernels) subtract them.

vLLM 0.32.0 and SGLang 0.5.23 hold `scales` in the dtype that the drafter runs in, and cast what
the file has (vLLM `model_executor/layers/quantization/{auto_awq,auto_gptq}.py`, SGLang
`srt/layers/parameter.py`: F16 and BF16 into each other, F32 into neither; read). Both packages
write F16. Here scales keep the weight's dtype, which loses nothing where the drafter runs in it.
A drafter of BF16 that has to run in F16 keeps a scale s exactly if 2**-14 <= s < 65536.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, Refused
from draftconv.quantization.formats.base import Declared, Format, StoredTensor, Weight
from draftconv.quantization.formats.checks import (
    AGAIN,
    ASYMMETRIC,
    check_groups,
    check_shape,
    check_style,
    check_weight,
    scale_dtype,
    scale_of,
)
from draftconv.quantization.formats.module_tensors import ModuleTensors
from draftconv.quantization.scheme import Granularity, Scheme

BITS = 4
EACH = 32 // BITS
"""Quantized values of a word."""
HEAD = "lm_head"
HALVES = ("F16", "BF16")
"""What scales are stored in."""


def side_parts(format: Format, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, StoredTensor]:
    """`qzeros` and `scales` of a weight [O, I].

    Raises:
        Refused: the format cannot hold it.
    """
    check_shape(format, shape, scheme, outputs=EACH, inputs=EACH)
    outputs, inputs = shape
    groups = inputs // (scheme.weights.group or inputs)
    own = _check_half(format, scale_dtype(format, scheme, dtype))
    return StoredTensor("qzeros", "I32", (groups, outputs // EACH)), StoredTensor("scales", own, (groups, outputs))


def side_tensors(format: Format, weight: Weight, style: str | None, zero: int) -> dict[str, Tensor]:
    """The tensors that `side_parts` foretold.

    Args:
        zero: what stands for zero point 8 in a nibble of `qzeros`.
    """
    check_style(format, style)
    check_weight(format, weight)
    scale_OG = scale_of(format, weight)
    _check_half(format, weight.dtype)
    outputs, groups = scale_OG.shape
    qzeros = torch.full((groups, outputs // EACH), _filled_word(zero), dtype=torch.int32, device=scale_OG.device)
    return {"qzeros": qzeros, "scales": scale_OG.T.contiguous()}


def read_scales(tensors: ModuleTensors, declared: Declared, shape: tuple[int, int], zero: int) -> Tensor:
    """The scales [O, G] of a weight [O, I].

    Raises:
        BadCheckpoint: `scales` or `qzeros` do not fit it.
        Refused: a zero point is not 8.
    """
    outputs, inputs = shape
    scales_GO = tensors.get("scales", HALVES, None, outputs)
    check_groups(inputs, len(scales_GO), declared.granularity, declared.group)
    qzeros = tensors.get("qzeros", ("I32",), len(scales_GO), outputs // EACH)
    if odd := int((qzeros != _filled_word(zero)).sum()):
        raise Refused(
            f"{odd} of {qzeros.numel()} words of qzeros hold other zero points than 8", why=ASYMMETRIC, cure=AGAIN
        )
    return scales_GO.T.contiguous()


def read_grouping(section: Config, bits: Sequence[str], group: Sequence[str]) -> tuple[Granularity, int | None]:
    """Granularity and group of a config that spells 4 bits and the group in one of these keys.

    Raises:
        BadCheckpoint: a key is missing or no number. Refused: other than 4 bits.
    """
    if (width := _first_integer(section, bits)) != BITS:
        raise Refused(f"{show(width)}-bit weights are not known to draftconv", why=f"it knows those of {BITS}")
    match _first_integer(section, group):
        case -1:
            return "channel", None
        case size if size > 0:
            return "group", size
        case size:
            raise BadCheckpoint(f"{group[0]} is {show(size)}, no size of a group", cure="correct config.json")


def _first_integer(section: Config, keys: Sequence[str]) -> int:
    """The first of some keys that is there."""
    for key in keys:
        value = section.integer(key)
        if value is not None:
            return value
    raise BadCheckpoint(f"{section.where} lacks {keys[0]}", why="it cannot be told from the tensors", cure="add it")


def _check_half(format: Format, dtype: str) -> str:
    if dtype not in HALVES:
        raise Refused(
            f"{format.title} has 16-bit scales, and {dtype} weights have others",
            why="engines read F16 and BF16 there",
            cure="bring the drafter to BF16 or F16 first",
        )
    return dtype


def _filled_word(nibble: int) -> int:
    """Eight times the same nibble, as int32."""
    bits = nibble * 0x11111111
    return bits - (bits >> 31 << 32)
