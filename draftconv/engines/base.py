"""How an engine's reading of a directory is judged.

An engine builds its modules from config.json, fills them from tensors by its own name
rules, and computes something. `Reading` holds what it would build (`built`, as `Facts`);
the truth is the drafter's own facts. A `Rule` compares the two at one point and cites
the engine file that makes it true. Nothing here opens an engine: rules are read from
source or were observed, and each says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from draftconv.drafter.config import Config
from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import OPTIONAL, expected
from draftconv.engines.loading import is_fused

Status = Literal["loads", "mis-read", "refused", "undecided"]
Effect = Literal["refused", "mis-read", "undecided", "note"]
Evidence = Literal["run", "read", "inferred"]


class Described(Protocol):
    """A tensor's header: enough to know how an engine would load it."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class View(Protocol):
    """A directory as an engine sees it, whether on disk or only planned."""

    @property
    def config(self) -> Mapping[str, object]: ...
    @property
    def tensors(self) -> Mapping[str, Described]: ...
    @property
    def sidecars(self) -> Mapping[str, Mapping[str, object]]: ...


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """`ENGINE[@VERSION][:HARDWARE]`, parsed."""

    name: str
    version: str
    hardware: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" + (f":{self.hardware}" if self.hardware else "")

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split(".") if part)


@dataclass(frozen=True)
class Reading:
    """One engine's look at one directory.

    Attributes:
        config: as the engine ends up with it (nested formats flattened its own way).
        names: canonical name → file name, for the tensors that reach a module.
        dropped: file names that the loader skips silently.
        fatal: file names that make the loader stop.
        built: the facts the engine builds from config.json alone.
        truth: what the drafter really is.
    """

    view: View
    config: Config
    spec: EngineSpec
    names: Mapping[str, str]
    dropped: tuple[str, ...]
    fatal: tuple[str, ...]
    built: Facts
    truth: Facts
    target: Target | None

    @property
    def mla(self) -> bool:
        return isinstance(self.truth.attention, Mla)

    @property
    def eagle(self) -> Config:
        return self.config.section("eagle_config")

    @property
    def architecture(self) -> str:
        return next(iter(self.config.texts("architectures")), "")

    @property
    def model_type(self) -> str:
        return self.config.text("model_type") or ""

    @property
    def quant_method(self) -> str:
        return Config(self.config.section("quantization_config").data).text("quant_method") or ""

    def tensor(self, canonical: str) -> Described | None:
        name = self.names.get(canonical)
        return self.view.tensors[name] if name is not None else None

    def before(self, *version: int) -> bool:
        return self.spec.numbers < version

    @cached_property
    def misfits(self) -> tuple[str, ...]:
        """Tensors whose shape is not what the engine builds from config.json."""
        if self.truth.quantization:
            return ()
        return tuple(
            f"{self.names[name]} is {list(found.shape)}, built as {list(row.shape)}"
            for name, row in expected(self.built).items()
            if (found := self.tensor(name)) is not None
            and name != "t2d"
            and not is_fused(self.names[name])
            and found.shape != row.shape
        )

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Canonical tensors the engine builds and the directory does not hold."""
        lent = {"lm_head.weight", "embed_tokens.weight", *OPTIONAL}
        return tuple(
            name
            for name, row in expected(self.built).items()
            if name not in self.names and name not in lent and not (self.truth.quantization and row.role != "norm")
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing an engine does, with the place that makes it true.

    `check` returns what in this directory breaks the rule, or None. `since` and `until`
    (exclusive) bound the versions it holds for.
    """

    code: str
    effect: Effect
    says: str
    source: str
    evidence: Evidence
    check: Callable[[Reading], str | None]
    since: tuple[int, ...] = ()
    until: tuple[int, ...] = ()

    def applies(self, spec: EngineSpec) -> bool:
        numbers = spec.numbers
        return numbers[: len(self.since)] >= self.since and (not self.until or numbers[: len(self.until)] < self.until)


@dataclass(frozen=True, slots=True)
class Line:
    """One broken rule in one directory."""

    rule: Rule
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an engine loads a directory and computes what was trained."""

    spec: EngineSpec
    lines: tuple[Line, ...]
    rules: tuple[Rule, ...] = field(repr=False, default=())
    """Every rule that was applied."""

    @property
    def status(self) -> Status:
        effects = {line.rule.effect for line in self.lines}
        for status in ("refused", "mis-read", "undecided"):
            if status in effects:
                return status
        return "loads"


@dataclass(frozen=True, slots=True)
class Engine:
    """One server: its rules, how it reads a directory, and how it is started."""

    name: str
    title: str
    version: str
    hardware: tuple[str, ...]
    rules: tuple[Rule, ...]
    read: Callable[[View, Facts, Target | None, EngineSpec], Reading]

    def check(self, view: View, truth: Facts, target: Target | None, spec: EngineSpec) -> Verdict:
        """Judge a directory that is known to hold a drafter with the facts `truth`."""
        reading = self.read(view, truth, target, spec)
        rules = tuple(rule for rule in self.rules if rule.applies(spec))
        lines = tuple(Line(rule, detail) for rule in rules if (detail := rule.check(reading)))
        return Verdict(spec, lines, rules)


# ── what transformers' config classes make of absent keys ─────────────────────────────


LLAMA_DEFAULTS = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "vocab_size": 32000,
                  "num_attention_heads": 32, "max_position_embeddings": 2048}  # fmt: skip
DEEPSEEK_DEFAULTS = {"hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "vocab_size": 129280,
                     "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                     "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 4096}  # fmt: skip
"""Defaults of transformers 5.19 LlamaConfig and DeepseekV3Config, which all three engines read through."""


def built_attention(config: Config, *, mla: bool, qkv_bias: bool, o_bias: bool, qk_norm: bool) -> Gqa | Mla:
    """Attention as built from config.json alone; an explicit null q_lora_rank means a plain query."""
    size = _sized(config, mla=mla)
    heads = size("num_attention_heads")
    if mla:
        plain = config.has("q_lora_rank") and config.raw("q_lora_rank") is None
        return Mla(
            heads,
            None if plain else size("q_lora_rank"),
            size("kv_lora_rank"),
            size("qk_nope_head_dim"),
            size("qk_rope_head_dim"),
            size("v_head_dim"),
        )
    head_dim = config.size("head_dim") or size("hidden_size") // heads
    return Gqa(heads, config.size("num_key_value_heads") or heads, head_dim, qkv_bias, o_bias, qk_norm)


def _sized(config: Config, *, mla: bool) -> Callable[[str], int]:
    defaults = DEEPSEEK_DEFAULTS if mla else LLAMA_DEFAULTS
    return lambda key: config.size(key) or defaults[key]


def built_sizes(config: Config, *, mla: bool) -> dict[str, int]:
    """Widths as built from config.json alone, under the names of `Facts`."""
    size = _sized(config, mla=mla)
    return {
        "layers": size("num_hidden_layers"),
        "hidden": size("hidden_size"),
        "intermediate": size("intermediate_size"),
        "vocab": size("vocab_size"),
        "draft_vocab": config.size("draft_vocab_size") or size("vocab_size"),
    }


# ── checks that several engines share ───────────────────────────────────────────────


def listed(items: tuple[str, ...] | list[str]) -> str | None:
    """The first few of some findings, or None when there are none."""
    if not items:
        return None
    shown = ", ".join(items[:3])
    return shown if len(items) <= 3 else f"{shown} and {len(items) - 3} more"


def compare(fact: str, name: str) -> Callable[[Reading], str | None]:
    """A check that one fact is built as it was trained."""

    def check(reading: Reading) -> str | None:
        built, truth = getattr(reading.built, fact), getattr(reading.truth, fact)
        return None if built == truth else f"{name}: built as {_plain(built)}, trained as {_plain(truth)}"

    return check


def null_keys(*keys: str) -> Callable[[Reading], str | None]:
    """A check that none of these keys is present with the value null."""

    def check(reading: Reading) -> str | None:
        data = reading.view.config
        return listed([f"{key}: null" for key in keys if key in data and data[key] is None])

    return check


def short_rotary(reading: Reading) -> str | None:
    """max_position_embeddings below the target's, or left to a default of 2048 or 4096."""
    target = reading.target
    wanted = target.max_positions if target else None
    written = reading.config.size("max_position_embeddings")
    defaults = DEEPSEEK_DEFAULTS if reading.mla else LLAMA_DEFAULTS
    limit = written or defaults["max_position_embeddings"]
    if wanted and limit < wanted:
        absent = "" if written else " (absent)"
        return f"max_position_embeddings is {limit}{absent}, {target.name if target else ''} has {wanted}"
    return None


def wrong_vocab(reading: Reading) -> str | None:
    target = reading.target
    if target and target.vocab and target.vocab != reading.built.vocab:
        return f"vocab_size {reading.built.vocab}, {target.name} has {target.vocab}"
    return None


def _plain(value: object) -> object:
    return getattr(value, "value", value)
