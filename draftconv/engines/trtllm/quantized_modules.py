"""How TensorRT-LLM matches the lists of each quantization method."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from draftconv.engines.ignore_lists import IgnoreLists
from draftconv.engines.module_names import Module
from draftconv.engines.quantized_modules import (
    NOTHING_EXCLUDES,
    BuiltModule,
    DeclaredQuantization,
    Method,
    full,
    globbed,
    left_plain,
    made_quantized,
    shards_of,
)
from draftconv.quantization.recipes import FormatName


def _modelopt(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    section = declared.modelopt(sidecar_wins=True)
    old = declared.spec.before(1, 3)  # another copy of the rule, until 2026-01-28
    if old and module.parts == ("fc",):
        return BuiltModule("plain", "fc takes no quantization before 1.3")
    fused = shards_of(module, "qkv_proj", "gate_up_proj", "kv_a_proj_with_mqa")
    entries = section.texts("exclude_modules") or section.texts("ignore")
    for name in (module.name, *fused):
        if entry := globbed(name, entries) if old else _ancestor(name, entries):
            return left_plain("exclude_modules", entry)
    if section.text("quant_algo") != "MIXED_PRECISION":
        return NOTHING_EXCLUDES
    layers = section.section("quantized_layers").data
    names = fused or (module.name,)
    matches = [next((key for key in layers if (name in key if fused else name == key)), None) for name in names]
    if any(matches):
        return made_quantized("quantized_layers", next(filter(None, matches), ""))
    return BuiltModule("plain", "quantized_layers does not list it")


def _ancestor(name: str, entries: Sequence[str]) -> str | None:
    """The first entry that matches the name or a module around it: glob, `re:` in full, `X.*` also for X."""
    while name:
        for entry in entries:
            if entry.startswith("re:"):
                if full(entry[3:], name):
                    return entry
            elif fnmatch.fnmatchcase(name, entry) or (
                entry.endswith(".*") and fnmatch.fnmatchcase(name, entry.removesuffix(".*"))
            ):
                return entry
        name = name.rpartition(".")[0]
    return None


def _compressed(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    for name in (module.name, *shards_of(module, "qkv_proj", "gate_up_proj")):
        if entry := _ancestor(name, declared.config.texts("ignore")):
            return left_plain("ignore", entry)
    return NOTHING_EXCLUDES


_SOURCE = "tensorrt_llm/quantization/modelopt_config.py, 1.3.0rc at 2edf354d"

METHODS: Mapping[str, Method] = {
    "modelopt": Method(
        _modelopt, "exclude_modules: glob on the name, its fused parts and (since 1.3) what is around it; "
        "quantized_layers: equal, part of the key for fused ones", _SOURCE, "read"),
    "compressed-tensors": Method(
        _compressed, "ignore becomes exclude_modules; targets are not matched",
        "tensorrt_llm/_torch/models/checkpoints/hf/compressed_tensors.py, 1.3.0rc", "inferred"),
}  # fmt: skip

LISTS: Mapping[FormatName, IgnoreLists] = dict.fromkeys(
    ("modelopt-awq", "modelopt-fp8", "modelopt-nvfp4"), IgnoreLists("name", "projection")
)
"""ModelOpt: quantized_layers names every stored projection."""
