"""How SGLang matches the lists of each quantization method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftconv.drafter.config import Config
from draftconv.engines.hardware import AMD
from draftconv.engines.hardware import named as named_hardware
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
    compiled,
    dynamic,
    ends,
    excluded,
    flat,
    full_if_regular,
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
    ignore, targets = declared.config.texts("ignore"), targets_of(declared.config)
    if entry := named(module.name, ignore) or ends(module.name, ignore):
        return left_plain("ignore", entry)
    if module.head:
        entry = named(module.name, targets) or ends(module.name, targets)
        return made_quantized("targets", entry) if entry else BuiltModule("plain", "no target names the head")
    if not targets:
        return BuiltModule("plain", "no group has targets")
    if entry := named(module.name, targets) or class_named(module.kind, targets):
        missed = _as_parent_builds(module, ignore, targets)
        return BuiltModule("stops", f"no target matches {missed}") if missed else made_quantized("targets", entry)
    return BuiltModule("stops", "no target matches it")


def _as_parent_builds(module: Module, ignore: Sequence[str], targets: Sequence[str]) -> str | None:
    """A name that no target matches of what the Llama class's parent builds before it is replaced."""
    name = LONG_NAMES.get(module.name)
    if name is None or named(name, ignore) or ends(name, ignore) or named(name, targets):
        return None
    return None if class_named(module.kind, targets) else name


LONG_NAMES: Mapping[str, str] = {
    "model.qkv_proj": "model.self_attn.qkv_proj", "model.gate_up_proj": "model.mlp.gate_up_proj",
    "model.down_proj": "model.mlp.down_proj",
}  # fmt: skip
"""What the Llama class calls a linear → what its parent calls the one that is thrown away."""


def _quark(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    if module.head:
        return HEAD_LEFT
    exclude = declared.config.texts("exclude")
    if entry := named(module.name, exclude):
        return left_plain("exclude", entry)
    shards = shards_of(module, "gate_up_proj", "fused_qkv_a_proj_with_mqa")
    matches = [named(shard, exclude) for shard in shards]
    if any(matches):
        return left_plain("exclude", next(filter(None, matches), "")) if all(matches) else _TORN
    return _by_shard(declared, module.name, shards)


_TORN = BuiltModule("stops", "it names some of the projections that are joined here, and not all")


def _by_shard(declared: DeclaredQuantization, name: str, shards: Sequence[str]) -> BuiltModule:
    layers = declared.config.section("layer_quant_config")
    entries = [globbed(shard, layers.data) for shard in shards]
    sections = [layers.section(entry) if entry else declared.config.section("global_quant_config") for entry in entries]
    if any(section.data != sections[0].data for section in sections):
        return _TORN
    return by_layer(declared, shards[0] if shards else name)


def _modelopt(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    section = declared.modelopt(sidecar_wins=False)
    if section.text("quant_algo") == "MIXED_PRECISION":
        return BuiltModule("unknown", "MIXED_PRECISION is read as one of several methods")
    if section.text("quant_algo") is None:
        return BuiltModule("plain", "no quant_algo")
    entries = _left_out(section, declared)
    names = shards_of(module, "qkv_proj", "gate_up_proj") or (module.name,)
    matches = [next((entry for entry in entries if _path_holds(name, entry)), None) for name in names]
    if any(matches) and not all(matches):
        return _TORN
    if all(matches):
        return left_plain("ignore", matches[0] or "")
    for entry in entries:
        glob = compiled(entry.replace(".", r"\.").replace("*", ".*"))
        tail = entry.rpartition(".")[2]
        if (
            glob.fullmatch(module.name)
            or any(glob.fullmatch(part) for part in module.name.split("."))
            or (tail in _A_AND_B and tail in module.name.rpartition(".")[2])
        ):
            return left_plain("ignore", entry)
    return NOTHING_EXCLUDES


def _left_out(section: Config, declared: DeclaredQuantization) -> tuple[str, ...]:
    """Of config.json FP8 reads `ignore` alone, the FP4 kinds what comes first; the other file has one spelling.

    A header that is nested in config.json, as ModelOpt exports a drafter, is made a flat one by its algorithm: its
    `exclude_modules` goes unread (srt/configs/model_config.py, modelopt_quant.py, 0.5.23, run).
    """
    flattened = declared.config.data and declared.config.text("quant_method") in (None, "modelopt")
    said = declared.config if flattened else section
    if said.data == declared.config.data and section.text("quant_algo") == "FP8":
        return said.texts("ignore")
    return excluded(said)


_A_AND_B = frozenset({"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"})


def _path_holds(name: str, entry: str) -> bool:
    """True when the entry is a run of whole dotted parts of the name."""
    return f".{entry.rstrip('.')}." in f".{name}."


def _awq(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    if module.head:
        marlin = declared.config.flag("lm_head") and declared.spec.hardware not in named_hardware(*AMD)
        return BuiltModule("stops", "lm_head: true breaks Marlin's AWQ") if marlin else HEAD_LEFT
    if entry := inside(module.name, declared.config.texts("modules_to_not_convert")):
        return left_plain("modules_to_not_convert", entry)
    return NOTHING_EXCLUDES


def _auto_round(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    extra = declared.config.section("extra_config")
    special = [key for key in extra.data if key == module.name]
    special += [key for key in extra.data if set(key) & set("*+?^$()[]{}|\\") and full_if_regular(key, module.name)]
    if special:
        bits = extra.section(special[0]).integer("bits")
        if bits is not None:
            return BuiltModule("plain" if bits >= 16 else "quantized", f"extra_config: {special[0]}")
    if blocks := declared.config.raw("block_name_to_quantize"):
        starts = tuple(part for text in flat(blocks) for part in text.split(","))
        chosen = next((start for start in starts if module.name.startswith(start)), None)
        return (
            made_quantized("block_name_to_quantize", chosen)
            if chosen
            else BuiltModule("plain", "in no block to quantize")
        )
    return HEAD_LEFT if module.head else NOTHING_EXCLUDES


def _gptq(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    if module.head and not declared.config.flag("lm_head"):
        return HEAD_LEFT
    if entry := dynamic(declared.config, module.name):
        return left_plain("dynamic", entry)
    return BuiltModule("quantized", "only `dynamic` leaves modules out; lists of modules are not read")


_QUANT = "sglang/srt/layers/quantization"

METHODS: Mapping[str, Method] = {
    "compressed-tensors": Method(
        _compressed, "ignore: equal, dotted suffix or re:; a linear that no target matches stops the start",
        f"{_QUANT}/compressed_tensors/utils.py, 0.5.23", "run"),
    "quark": Method(
        _quark, "exclude: equal or re:, also by the parts of gate_up and the a-projections; the head never",
        f"{_QUANT}/quark/utils.py, 0.5.23", "run"),
    "modelopt": Method(
        _modelopt, "ignore: whole parts of the path, or glob on the name or any part of it",
        f"{_QUANT}/modelopt_quant.py, 0.5.23", "run"),
    "awq": Method(
        _awq, "modules_to_not_convert: part of the name; the head never",
        f"{_QUANT}/awq/awq.py, 0.5.23", "run"),
    "auto-round": Method(
        _auto_round, "extra_config: equal, or a regular expression in full; the head only if named",
        f"{_QUANT}/auto_round.py, 0.5.23", "run"),
    "gptq": Method(
        _gptq, "all linears but those of `dynamic`; the head with lm_head: true",
        f"{_QUANT}/utils.py, 0.5.23", "run"),
}  # fmt: skip

LISTS: Mapping[FormatName, IgnoreLists] = {"gptq": IgnoreLists("rule"), "autoawq": IgnoreLists("key")}
"""What is kept stands in `dynamic` (GPTQ) and in `extra_config` (auto-round)."""
