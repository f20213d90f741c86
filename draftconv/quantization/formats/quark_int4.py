"""INT4 as amd-quark stores it: packed along inputs per channel, along outputs per group.

The published W4A8 drafter is of this format, per channel. No engine reads that; vLLM
reads it per group (`model_executor/layers/quantization/quark/quark.py`, 0.33.0, read).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftconv.checkpoint import show
from draftconv.drafter.config import Config
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.quantization import pack_int32
from draftconv.quantization.formats import quark_config
from draftconv.quantization.formats.base import Declaration, Declared, Format, StoredTensor, Weight
from draftconv.quantization.formats.module_tensors import FLOAT, SPELLED, TORCH, ModuleTensors
from draftconv.quantization.pack_int32 import Order
from draftconv.quantization.rounding import RoundedWeight
from draftconv.quantization.scheme import Granularity, InputScheme, Scheme

FILE_TO_FILE = "file-to-file"

WEIGHTS: Mapping[Granularity, quark_config.Spec] = {
    "channel": {
        **quark_config.SPEC, "dtype": "int4", "qscheme": "per_channel", "ch_axis": 0,
        "observer_cls": "PerChannelMinMaxObserver",
    },
    "group": {
        **quark_config.SPEC, "dtype": "int4", "qscheme": "per_group", "ch_axis": -1,
        "observer_cls": "PerGroupMinMaxObserver",
    },
}  # fmt: skip

ONLY_READ = {
    FILE_TO_FILE: "written by Quark's file-to-file mode: config.json says pack_method reorder, but the nibbles are in "
    "natural order (scales in F32 and no zero points show it) and are read so",
}

MAY_LACK = {
    "weight_zero_point": "weight_zero_point is missing, which Quark writes: the weights are read as symmetric, in the "
    "order of nibbles that pack_method names",
}


class QuarkInt4(Format):
    """`store` writes what `export_safetensors` of a model in memory writes.

    Per channel: weight I32 [O, I/8], weight_scale [O], weight_zero_point I32 [O/8]. Per group,
    transposed: weight I32 [I, O/8], weight_scale [I/g, O], weight_zero_point I32 [I/g, O/8].
    Scales have the dtype of the weight; zero points are zeros, written although nothing needs them,
    and so not asked for on reading.
    """

    id = "quark-int4"
    title = "Quark INT4"
    source = "amd-quark 0.13 torch/utils/pack.py, torch/quantization/file2file_quantization.py, run"
    holds = frozenset({("int4", "channel"), ("int4", "group")})
    inputs = frozenset({None, InputScheme("int8", "token", True), InputScheme("fp8", "token", True)})
    styles = ("reorder", "order")
    only_read = ONLY_READ
    reads_style = True
    may_lack = MAY_LACK

    def parts(self, shape: tuple[int, int], scheme: Scheme, dtype: str) -> tuple[StoredTensor, ...]:
        outputs, inputs = shape
        weights = scheme.weights
        if (weights.dtype, weights.granularity) not in self.holds or scheme.inputs not in self.inputs:
            raise Refused(f"{self.title} has no {scheme}", cure="known: INT4 per channel or group, symmetric")
        scale = "F32" if weights.scale_dtype == "F32" or dtype == "F64" else dtype
        _check_weight(shape, weights.group, scale, dtype)
        if weights.group is None:
            return (
                StoredTensor("weight", "I32", (outputs, inputs // 8)),
                StoredTensor("weight_scale", scale, (outputs,)),
                StoredTensor("weight_zero_point", "I32", (outputs // 8,)),
            )
        groups = inputs // weights.group
        return (
            StoredTensor("weight", "I32", (inputs, outputs // 8)),
            StoredTensor("weight_scale", scale, (groups, outputs)),
            StoredTensor("weight_zero_point", "I32", (groups, outputs // 8)),
        )

    def store(self, weight: Weight, style: str | None = None) -> dict[str, Tensor]:
        qvalues_OI, scale_OG = weight.quantized.qvalues, weight.quantized.scale
        outputs, inputs = qvalues_OI.shape
        per_channel = scale_OG.shape[1] == 1 and weight.granularity != "group"
        group = None if per_channel else inputs // scale_OG.shape[1]
        _check_weight((outputs, inputs), group, SPELLED[scale_OG.dtype], weight.dtype)
        order = _order(self.written(style))
        zeros = scale_OG.new_zeros(scale_OG.shape[1], outputs // 8, dtype=torch.int32)
        if per_channel:
            return {
                "weight": pack_int32.pack(qvalues_OI, order),
                "weight_scale": scale_OG.flatten(),
                "weight_zero_point": zeros.flatten(),
            }
        return {
            "weight": pack_int32.pack(qvalues_OI.T.contiguous(), order),
            "weight_scale": scale_OG.T.contiguous(),
            "weight_zero_point": zeros,
        }

    def resolve(self, stored: Mapping[str, Tensor], declared: Declared) -> Declared:
        tensors = ModuleTensors(self.title, stored)
        tensors.only("weight", "weight_scale", "weight_zero_point")
        rows, columns = tensors.get("weight", ("I32",), None, None).shape
        flat = "weight_scale" in stored and stored["weight_scale"].ndim == 1
        scale = tensors.get("weight_scale", FLOAT, *((rows,) if flat else (None, None)))
        file_to_file = "weight_zero_point" not in stored and scale.dtype == torch.float32
        if file_to_file and declared.style == "order":
            raise BadCheckpoint(
                "weight_zero_point is missing beside scales in F32, under pack_method order",
                why="only Quark's file-to-file mode leaves zero points out, and it labels every checkpoint reorder",
                cure="export the checkpoint again",
            )
        resolved = replace(
            declared, granularity="channel", group=None, style=FILE_TO_FILE if file_to_file else declared.style
        )
        if not flat:
            groups, outputs = scale.T.shape if file_to_file else scale.shape
            if rows % groups or outputs != 8 * columns:
                raise BadCheckpoint(
                    f"weight_scale {show(list(scale.shape))} does not fit weight: "
                    f"{rows} inputs and {8 * columns} outputs",
                    why="each output has as many scales, and all groups of inputs have one size",
                    cure="export the checkpoint again",
                )
            resolved = replace(resolved, granularity="group", group=rows // groups)
        if declared.granularity not in (None, resolved.granularity) or declared.group not in (None, resolved.group):
            raise BadCheckpoint(
                f"quantization_config says scales {_grouping(declared)}, the tensors have them {_grouping(resolved)}",
                why="read as declared, weights would be multiplied by scales of others",
                cure="correct quantization_config: global_quant_config: weight",
            )
        return resolved

    def load(self, stored: Mapping[str, Tensor], declared: Declared, dtype: str) -> Weight:
        resolved = self.resolve(stored, declared)
        tensors = ModuleTensors(self.title, stored)
        words, scale = stored["weight"], stored["weight_scale"]
        if resolved.style != FILE_TO_FILE:
            zeros = tensors.optional("weight_zero_point", ("I32",), *scale.shape[:-1], -(-scale.shape[-1] // 8))
            if zeros is not None and zeros.any():
                raise BadCheckpoint(
                    "weight_zero_point is not zero",
                    why="the config declares symmetric weights: either it lies, or the tensor is damaged",
                    cure="export the checkpoint again",
                )
        qvalues = pack_int32.unpack(words, "order" if resolved.style == FILE_TO_FILE else _order(resolved.style))
        if resolved.style == FILE_TO_FILE and dtype in TORCH:
            # Quark computed these in the weight's dtype and widened them for the file.
            narrow = scale.to(TORCH[dtype])
            scale = narrow if torch.equal(narrow.to(scale.dtype), scale) else scale
        if resolved.granularity == "group":
            qvalues = qvalues.T.contiguous()
            scale_OG = scale if resolved.style == FILE_TO_FILE else scale.T.contiguous()
        else:
            scale_OG = scale[:, None]
        scale_dtype = SPELLED[scale.dtype]
        quantized = RoundedWeight("int4", qvalues, scale_OG, torch.ones((), device=scale.device))
        return Weight(quantized, dtype if scale_dtype == "F32" else scale_dtype, granularity=resolved.granularity)

    def declare(self, declared: Declared, modules: Sequence[str]) -> Declaration:
        del modules
        if (declared.dtype, declared.granularity) not in self.holds or declared.granularity is None:
            raise Refused(f"{self.title} cannot declare {declared.dtype} weights per {declared.granularity}")
        if (declared.group is None) == (declared.granularity == "group"):
            raise UsageError(f"{self.title}: a group of {declared.group} beside scales per {declared.granularity}")
        order = _order(self.written(declared.style))
        weight = {**WEIGHTS[declared.granularity], "group_size": declared.group}
        return quark_config.write(weight, declared.inputs, declared.ignore, order)

    def read(self, config: Mapping[str, object], sidecars: Mapping[str, Mapping[str, object]]) -> Declared | None:
        del sidecars
        spec = quark_config.weight_spec(config)
        if spec is None or spec.text("dtype") not in ("int4", "uint4"):
            return None
        for granularity, expected in WEIGHTS.items():
            if quark_config.tells(spec, expected, ignoring=("group_size",)):
                return Declared(
                    "int4",
                    granularity,
                    _group(spec, granularity),
                    quark_config.inputs(config, self.inputs),
                    quark_config.excluded(config),
                    _order(quark_config.pack_method(config)),
                )
        raise Refused(
            f"{spec.where}: {quark_config.summary(spec)}",
            why="draftconv knows Quark's INT4 per output row or per group of inputs, symmetric and static",
            cure="quantize the 16-bit drafter with a recipe",
        )


QUARK_INT4 = QuarkInt4()


def _check_weight(shape: tuple[int, int], group: int | None, scale: str, dtype: str) -> None:
    """Raises Refused for a weight that Quark has no bytes for."""
    outputs, inputs = shape
    if outputs % 8 or (group is None and inputs % 8):
        raise Refused(
            f"Quark INT4 cannot hold a weight of {outputs} outputs and {inputs} inputs",
            why="it packs eight zero points of outputs, and eight quantized values, into a 32-bit word",
            cure="exclude the tensor",
        )
    if group is not None and inputs % group:
        raise Refused(
            f"{inputs} inputs are no multiple of the group of {group}",
            why="all groups of a row have one size",
            cure="take a recipe per channel, or exclude the tensor",
        )
    if scale != dtype and (scale, dtype) != ("F32", "F64"):
        raise Refused(
            f"Quark INT4 keeps scales in the dtype of the weight, {dtype}, not in {scale}",
            why="rounding them would change every weight",
            cure="compressed-tensors and ModelOpt hold such scales",
        )


def _order(style: str | None) -> Order:
    for order in pack_int32.SLOTS:
        if order == style:
            return order
    raise BadCheckpoint(
        f"pack_method is {show(style)}",
        why="the order of eight nibbles in a word is order or reorder, and the words themselves do not tell",
        cure="correct quantization_config: export: pack_method",
    )


def _grouping(declared: Declared) -> str:
    return f"per group of {declared.group}" if declared.group else f"per {declared.granularity}"


def _group(spec: Config, granularity: Granularity) -> int | None:
    group = spec.size("group_size")
    if (group is None) == (granularity == "group"):
        raise BadCheckpoint(
            f"{spec.where}: group_size is {group} beside qscheme per_{granularity}",
            why="scales per group have a size, scales per channel have none",
            cure="correct the one that is wrong",
        )
    return group
