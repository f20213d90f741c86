"""How TensorRT-LLM matches the lists of each quantization method."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from draftconv.checkpoint import QUANT_FILE
from draftconv.checkpoint.dtypes import FLOATS
from draftconv.drafter.config import Config
from draftconv.engines import checks
from draftconv.engines.ignore_lists import IgnoreLists
from draftconv.engines.module_names import Module
from draftconv.engines.quantized_modules import (
    NOTHING_EXCLUDES,
    BuiltModule,
    DeclaredQuantization,
    Method,
    declaration,
    full,
    globbed,
    left_plain,
    shards_of,
)
from draftconv.engines.rules import SimulatedLoad
from draftconv.quantization.recipes import FormatName

MIXED = "MIXED_PRECISION"
ROWS = "FP8_PER_CHANNEL_PER_TOKEN"
EIGHT_BITS = frozenset({"FP8", "FP8_BLOCK_SCALES", ROWS})
"""Algorithms whose weights have the shape of the floats."""

UNREAD = ("auto-round", "awq", "bitsandbytes", "fbgemm_fp8", "gptq", "quark")
"""quant_methods that have no branch: everything is built plain."""


def translated(weights: Config, inputs: Config) -> str | None:
    """The algorithm that a group of compressed-tensors becomes; None where that raises."""
    strategy, given = weights.text("strategy"), inputs.text("strategy")
    match weights.integer("num_bits"), strategy, given:
        case 8, "channel", "token":
            return ROWS  # integers too: their type is not looked at
        case 8, "block", "group" if inputs.size("group_size") == 128:
            return "FP8_BLOCK_SCALES"
        case 4, "tensor_group", "tensor_group" if weights.text("type") == "float" and weights.size("group_size") == 16:
            return "NVFP4"
    return None


def modelopt_section(load: SimulatedLoad) -> Config:
    """What ModelOpt says, from the file that wins."""
    section = load.config.section("quantization_config").data
    declared = declaration(load.spec, section, load.view.sidecars)
    return declared.modelopt(sidecar_wins=True)


def algorithm(load: SimulatedLoad) -> str | None:
    """The algorithm that linears are built with where nothing excludes them."""
    if not load.view.sidecars.get(QUANT_FILE) and checks.quant_method(load) == "compressed-tensors":
        groups = checks.compressed_groups(load)
        return translated(*groups[0][:2]) if len(groups) == 1 else None
    return modelopt_section(load).text("quant_algo")


def declares(load: SimulatedLoad) -> bool:
    """Whether anything is said of a quantization."""
    return bool(load.config.section("quantization_config").data or load.view.sidecars.get(QUANT_FILE))


def words(load: SimulatedLoad) -> list[str]:
    """Quantized weights that are stored in another shape than floats."""
    expected = load.expected_tensors
    return [
        name for part, name in load.results.loaded.items()
        if part in expected and load.view.tensors[name].dtype not in FLOATS
        and load.view.tensors[name].shape != expected[part].shape and part != "d2t"
    ]  # fmt: skip


def _unread(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    return BuiltModule("plain", f"quant_method {declared.method} has no branch for {module.name}")


def _modelopt(declared: DeclaredQuantization, module: Module) -> BuiltModule:
    section = declared.modelopt(sidecar_wins=True)
    old = declared.spec.before(1, 3)  # another copy of the rule, until 2026-01-28
    if old and module.parts == ("fc",):
        return BuiltModule("plain", "fc takes no quantization before 1.3")
    fused = shards_of(module, "qkv_proj", "gate_up_proj", "kv_a_proj_with_mqa")
    entries = section.texts("exclude_modules") or section.texts("ignore")
    if section.text("quant_algo") is None:
        return BuiltModule("plain", "no quant_algo")
    for name in (module.name, *fused):
        if entry := globbed(name, entries) if old else _ancestor(name, entries):
            return left_plain("exclude_modules", entry)
    if section.text("quant_algo") == MIXED:
        # A drafter's weights are created under this, which quantizes nothing; __post_init__ gives layers their own
        # configs and creates again only what is excluded.
        return BuiltModule("plain", "MIXED_PRECISION quantizes no module of a drafter")
    return NOTHING_EXCLUDES


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
    if len(declared.config.section("config_groups").data) > 1:
        return BuiltModule("plain", "several groups become MIXED_PRECISION, without a module in it")
    for name in (module.name, *shards_of(module, "qkv_proj", "gate_up_proj")):
        if entry := _ancestor(name, declared.config.texts("ignore")):
            return left_plain("ignore", entry)
    return NOTHING_EXCLUDES


_SOURCE = "tensorrt_llm/quantization/modelopt_config.py, 1.3.0rc at 2edf354d"

METHODS: Mapping[str, Method] = {
    "modelopt": Method(
        _modelopt, "exclude_modules: glob on the name, its fused parts and (since 1.3) what is around it; "
        "quantized_layers: not in time for a drafter", _SOURCE, "read"),
    "compressed-tensors": Method(
        _compressed, "ignore becomes exclude_modules; targets are not matched",
        "tensorrt_llm/models/quant_config_utils.py, 1.3.0rc at 21156a7a", "read"),
    **dict.fromkeys(UNREAD, Method(
        _unread, "no list is read, and nothing is quantized",
        "tensorrt_llm/_torch/model_config.py, 1.3.0rc at 008e0af8", "read")),
}  # fmt: skip

LISTS: Mapping[FormatName, IgnoreLists] = dict.fromkeys(
    ("modelopt-awq", "modelopt-fp8", "modelopt-nvfp4"), IgnoreLists("name", "projection", "projection")
)
"""ModelOpt: quantized_layers, where that style is asked for, names every stored projection."""
