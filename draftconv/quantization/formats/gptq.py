"""GPTQ version 1, symmetric: words along the inputs, transposed; `qzeros` holds the zero point minus 1.

`qweight` is `weight_packed` of compressed-tensors transposed. `g_idx` says which scale an input
is under; here that is always the input's place, so activations need no reordering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.errors import Refused, UsageError
from draftconv.quantization.formats.base import Declaration, Declared, Format, StoredTensor, Weight
from draftconv.quantization.formats.checks import (
    AGAIN,
    ASYMMETRIC,
    check_declared,
    quantized,
)
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

ZERO = 8 - 1
"""Zero point 8 in a nibble of `qzeros`: version 1 stores it less one, version 2 as it is."""

METHOD = "gptq"
LEFT_OUT = "-:"
"""How a rule of `dynamic` begins that leaves modules out; others give them a scheme of their own."""
IN_ORDER = "draftconv knows weights whose scales follow the inputs, and engines hardly any others"


class Gptq(Format):
    """INT4 for vLLM everywhere and SGLang on NVIDIA."""

    id = "gptq"
    title = "GPTQ"
    source = (
        "vLLM 0.32.0 model_executor/layers/quantization/auto_gptq.py and utils/gptq_utils.py, read and run on CPU; "
        "formulas of the format"
    )
    holds = frozenset({("int4", "channel"), ("int4", "group")})
    inputs = frozenset({None})

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        sides = side_parts(self, shape, scheme, dtype)
        outputs, inputs = shape
        return (
            StoredTensor("qweight", "I32", (inputs // EACH, outputs)),
            *sides,
            StoredTensor("g_idx", "I32", (inputs,)),
        )

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        sides = side_tensors(self, weight, style, ZERO)
        qvalues_OI = weight.quantized.qvalues
        words = pack(qvalues_OI, "order").bitwise_xor_(OFFSET)
        order = _order(qvalues_OI.shape[1], weight.quantized.scale.shape[1], qvalues_OI.device)
        return {"qweight": words.T.contiguous(), **sides, "g_idx": order}

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        tensors = ModuleTensors(self.title, stored)
        tensors.only("qweight", "qzeros", "scales", "g_idx")
        words = tensors.get("qweight", ("I32",), None, None)
        shape = (words.shape[1], words.shape[0] * EACH)
        scale_OG = read_scales(tensors, declared, shape, ZERO)
        order = tensors.optional("g_idx", ("I32",), shape[1])
        if order is not None and not torch.equal(order, _order(shape[1], scale_OG.shape[1], order.device)):
            raise Refused("g_idx puts inputs under scales out of order", why=IN_ORDER, cure=AGAIN)
        qvalues = unpack(words.T ^ OFFSET, "order")
        return Weight(quantized(declared.dtype, qvalues, scale_OG), SPELLED[scale_OG.dtype])

    def declare(self, declared: Declared, modules: Sequence[str]) -> Declaration:
        """`modules` are what vLLM goes by, `ignore` are rules of `dynamic`, which is all that SGLang looks at."""
        check_declared(self, declared)
        if not modules and not declared.ignore:
            raise UsageError(
                f"{self.title} names what is quantized or what is not, and neither is given",
                why="without a list some engines take names from the file, which no module of a drafter has, "
                "and others take every module for quantized",
            )
        lists: dict[str, object] = {}
        if modules:
            lists["modules_in_block_to_quantize"] = list(dict.fromkeys(modules))
        if declared.ignore:
            lists["dynamic"] = {rule: {} for rule in declared.ignore}
        return Declaration(
            {
                "quant_method": METHOD,
                "checkpoint_format": METHOD,
                "bits": BITS,
                "group_size": declared.group or -1,
                "sym": True,
                "desc_act": False,
                "lm_head": declared.head,
                **lists,
            }
        )

    def read(self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]) -> Declared | None:
        section = Config(config, "config.json: quantization_config")
        if section.text("quant_method") != METHOD:
            return None
        granularity, group = read_grouping(section, ("bits",), ("group_size",))
        if section.flag("sym") is False:
            raise Refused("the weights are asymmetric (sym: false)", why=ASYMMETRIC, cure=AGAIN)
        version = section.text("checkpoint_format") or section.text("format") or METHOD
        if version.lower() != METHOD:
            raise Refused(
                f"checkpoint_format {show(version)} is not known to draftconv",
                why="it knows version 1, whose zero points are stored less one",
            )
        if section.flag("desc_act") and group is not None:
            raise Refused("desc_act puts inputs under scales out of order", why=IN_ORDER, cure=AGAIN)
        rules = section.section("dynamic").data
        if any(not rule.startswith(LEFT_OUT) for rule in rules):
            raise Refused("dynamic gives modules schemes of their own", why="draftconv knows drafters of one scheme")
        return Declared("int4", granularity, group, ignore=tuple(rules), head=bool(section.flag(HEAD)))


def _order(inputs: int, groups: int, device: torch.device) -> Tensor:
    """The scale of each input: [I]."""
    return torch.arange(inputs, dtype=torch.int32, device=device) // (inputs // groups)


gptq = Gptq()
