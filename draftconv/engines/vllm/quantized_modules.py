"""How vLLM matches the lists of each quantization method."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from draftconv.checkpoint.dtypes import FLOATS
from draftconv.engines.ignore_lists import IgnoreLists
from draftconv.engines.module_names import Module
from draftconv.engines.quantized_modules import (
    HEAD_LEFT,
    NOTHING_EXCLUDES,
    BuiltModule,
    DeclaredQuantization,
    Method,
    by_layer,
    class_named,
    dynamic,
    excluded,
    flat,
    globbed,
    inside,
    left_plain,
    made_quantized,
    named,
    shards_of,
    targets_of,
)
from draftconv.quantization.recipes import FormatName


def _compressed(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    if entry := named(module.name, declared.config.texts("ignore")):
        return left_plain("ignore", entry)
    targets = targets_of(declared.config)
    if entry := named(module.name, targets) or class_named(module.kind, targets):
        return made_quantized("targets", entry)
    return BuiltModule("plain", "no target matches it")


def _quark(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    if module.head:
        return HEAD_LEFT
    if entry := named(module.name, declared.config.texts("exclude")):
        return left_plain("exclude", entry)
    return by_layer(declared, module.name)


def _modelopt(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    section = declared.modelopt(sidecar_wins=False)
    entries = excluded(section)
    if entry := inside(module.name, entries) or globbed(module.name, entries):
        return left_plain("ignore", entry)
    if section.text("quant_algo") != "MIXED_PRECISION":
        return NOTHING_EXCLUDES
    layers = section.section("quantized_layers").data
    names = (module.name, *shards_of(module, "qkv_proj", "gate_up_proj"))
    if entry := next((name for name in names if name in layers), None):
        algorithm = section.section("quantized_layers").section(entry).text("quant_algo") or ""
        if algorithm.upper() not in MIXED_ALGORITHMS:
            return left_plain("quantized_layers", f"{entry}, and no linear has {algorithm} there")
        return made_quantized("quantized_layers", entry)
    return BuiltModule("plain", "quantized_layers does not list it")


MIXED_ALGORITHMS = frozenset({"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8"})
"""What a linear may have under MIXED_PRECISION (`LINEAR_ALGOS`); any other is built plain."""


def _gptq(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    if module.head and not declared.config.flag("lm_head"):
        return HEAD_LEFT
    if entry := dynamic(declared.config, module.name):
        return left_plain("dynamic", entry)
    listed = tuple(flat(declared.config.raw("modules_in_block_to_quantize")))
    where = "modules_in_block_to_quantize"
    if not listed:
        listed, where = tuple(sorted(_modules_of(declared, floats=False))), "a list read off the tensor names"
    if not listed:
        return BuiltModule("quantized", "no list of modules")
    if entry := inside(module.name, listed):
        return made_quantized(where, entry)
    return BuiltModule("plain", f"{where} holds no part of this name")


def _modules_of(declared: DeclaredQuantization, *, floats: bool) -> Collection[str]:
    """File modules whose tensors are all floats, or that have one which is none."""
    coded = {name.rpartition(".")[0] or name for name, ref in declared.tensors.items() if ref.dtype not in FLOATS}
    return {name.rpartition(".")[0] or name for name in declared.tensors} - coded if floats else coded


def _awq(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    if module.head and not declared.config.flag("lm_head"):
        return HEAD_LEFT
    listed, where = declared.config.texts("modules_to_not_convert"), "modules_to_not_convert"
    if not listed:
        listed, where = tuple(sorted(_modules_of(declared, floats=True))), "a list read off the tensor names"
    if entry := inside(module.name, listed):
        return left_plain(where, entry)
    return NOTHING_EXCLUDES


_QUANT = "vllm/model_executor/layers/quantization"

METHODS: Mapping[str, Method] = {
    "compressed-tensors": Method(
        _compressed, "ignore: equal or re:; targets: equal, re: or part of the class name; unmatched is plain",
        f"{_QUANT}/compressed_tensors/utils.py, 0.33.0", "run"),
    "quark": Method(
        _quark, "exclude: equal or re:, no globs; layer_quant_config: glob; the head never",
        f"{_QUANT}/quark/utils.py, 0.33.0", "run"),
    "modelopt": Method(
        _modelopt, "ignore: equal, part of the name, or glob; the head too unless ignored",
        f"{_QUANT}/modelopt.py, 0.33.0", "run"),
    "gptq": Method(
        _gptq, "modules_in_block_to_quantize: part of the fused name; without it, a list of file names",
        f"{_QUANT}/utils/gptq_utils.py, 0.33.0", "run"),
    "awq": Method(
        _awq, "modules_to_not_convert: part of the name; without it, the file's plain modules",
        f"{_QUANT}/auto_awq.py, 0.33.0", "run"),
}  # fmt: skip

LISTS: Mapping[FormatName, IgnoreLists] = {"gptq": IgnoreLists("none", "part")}
"""GPTQ: modules_in_block_to_quantize holds parts of the fused names."""
