"""AutoAWQ's GEMM layout: words along the outputs, transposed, in AutoAWQ's order; zero point 8 throughout.

Two headers say that it is this: AutoAWQ's own, and AutoRound's, under which SGLang on AMD
takes drafters of BF16 (under AutoAWQ's it takes F16 there). AutoRound's says `sym: true`: with
`sym: false` SGLang would choose Marlin, which AMD does not have; either way the zero points
of the file are subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.errors import Refused
from draftconv.quantization.formats.base import Declaration, Declared, Format, StoredTensor, Weight
from draftconv.quantization.formats.checks import check_declared, check_scheme, quantized
from draftconv.quantization.formats.gptq_awq import (
    BITS,
    EACH,
    HEAD,
    read_grouping,
    read_scales,
    side_parts,
    side_tensors,
)
from draftconv.quantization.formats.module_tensors import SPELLED, ModuleTensors
from draftconv.quantization.pack_int32 import OFFSET, pack, unpack
from draftconv.quantization.scheme import Scheme

ZERO = 8
AWQ, AUTO_ROUND = "awq", "auto-round"
PACKING = "auto_round:auto_awq"
WHOLE = 16
"""Bits that AutoRound's header gives to a module that is not quantized."""


class AutoAwq(Format):
    """INT4 per group for vLLM and SGLang; the one that SGLang on AMD takes."""

    id = "autoawq"
    title = "AutoAWQ"
    source = (
        "vLLM 0.32.0 model_executor/layers/quantization/auto_awq.py, read and loaded on CPU; "
        "SGLang 0.5.23 srt/layers/quantization/awq and auto_round.py, loaded; "
        "AutoAWQ at 024d960c awq/models/_config.py, read"
    )
    holds = frozenset({("int4", "group")})
    inputs = frozenset({None})
    styles = (AWQ, AUTO_ROUND)

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        sides = side_parts(self, shape, scheme, dtype)
        return (StoredTensor("qweight", "I32", (shape[1], shape[0] // EACH)), *sides)

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        sides = side_tensors(self, weight, style, ZERO)
        return {"qweight": pack(weight.quantized.qvalues.T, "reorder").bitwise_xor_(OFFSET), **sides}

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        tensors = ModuleTensors(self.title, stored)
        tensors.only("qweight", "qzeros", "scales")
        words = tensors.get("qweight", ("I32",), None, None)
        shape = (words.shape[1] * EACH, words.shape[0])
        scale_OG = read_scales(tensors, declared, shape, ZERO)
        qvalues = unpack(words ^ OFFSET, "reorder").T.contiguous()
        return Weight(quantized(declared.dtype, qvalues, scale_OG), SPELLED[scale_OG.dtype])

    def declare(self, declared: Declared, modules: Sequence[str]) -> Declaration:
        """`ignore` has parts of names for AutoAWQ's header, whole names or regular expressions for AutoRound's."""
        check_declared(self, declared)
        shared: dict[str, object] = {"bits": BITS, "group_size": declared.group}
        if declared.style == AUTO_ROUND:
            extra = {name: {"bits": WHOLE, "data_type": "float"} for name in declared.ignore}
            return Declaration(
                {
                    "quant_method": AUTO_ROUND,
                    "packing_format": PACKING,
                    "backend": "awq",
                    "data_type": "int",
                    **shared,
                    "sym": True,
                    "extra_config": extra,
                }
            )
        return Declaration(
            {
                "quant_method": AWQ,
                "version": "gemm",
                **shared,
                "zero_point": True,
                "lm_head": declared.head,
                "modules_to_not_convert": list(declared.ignore),
            }
        )

    def read(self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]) -> Declared | None:
        section = Config(config, "config.json: quantization_config")
        match section.text("quant_method"):
            case "awq":
                style, ignore = AWQ, _awq(section)
            case "auto-round" if section.text("packing_format") == PACKING:
                style, ignore = AUTO_ROUND, _auto_round(section)
            case _:
                return None
        granularity, group = read_grouping(section, ("bits", "w_bit"), ("group_size", "q_group_size"))
        check_scheme(self, "int4", granularity, None)
        return Declared("int4", granularity, group, None, ignore, style, bool(section.flag(HEAD)))


def _awq(section: Config) -> tuple[str, ...]:
    version = section.text("version") or section.text("format") or "gemm"
    if version.lower() != "gemm":
        raise Refused(f"AutoAWQ version {show(version)} is not known to draftconv", why="it knows gemm")
    return section.texts("modules_to_not_convert")


def _auto_round(section: Config) -> tuple[str, ...]:
    if (kind := section.text("data_type")) not in (None, "int"):
        raise Refused(f"data_type {show(kind)} is not known to draftconv", why="it knows int")
    modules = section.section("extra_config")
    for name in modules.data:
        if (modules.section(name).integer("bits") or 0) < WHOLE:
            raise Refused(
                f"extra_config gives {show(name)} a scheme of its own", why="draftconv knows drafters of one scheme"
            )
    return tuple(modules.data)


autoawq = AutoAwq()
