"""What a drafter's linear layers are called while an engine builds it.

Quantization lists are matched against these names, which no checkpoint holds: projections
are fused, `midlayer` exists in TensorRT-LLM only, vLLM counts layers on from the target's,
and SGLang's Llama class leaves out the layer, `self_attn` and `mlp` where it replaces what
its parent built. Modules that never ask for a quantization (embeddings, norms, fc of
SGLang's Llama class, the head of vLLM's MLA class) are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.drafter.fused_projections import GATE_UP
from draftconv.drafter.tensors import expected
from draftconv.engines.registry import ENGINES
from draftconv.engines.rules import EngineSpec

HEAD_CLASS = "ParallelLMHead"
UNKNOWN_TARGET = 100_000
"""Layers of a target that is not known: no list that was written for a real one matches by chance."""


@dataclass(frozen=True, slots=True)
class Module:
    """One module that asks how it is quantized.

    Attributes:
        name: what lists are matched against.
        kind: its class, which class targets are matched against.
        parts: canonical weights it is made of, without `.weight`.
    """

    name: str
    kind: str
    parts: tuple[str, ...]

    @property
    def head(self) -> bool:
        """True for lm_head, which most methods treat apart."""
        return self.kind == HEAD_CLASS


Row = tuple[str, str, tuple[str, ...]]
"""Name, class, canonical weights."""
Variant = Literal["llama", "qwen3", "mla"]

ROW, COLUMN, REPLICATED = "RowParallelLinear", "ColumnParallelLinear", "ReplicatedLinear"
MERGED, QKV = "MergedColumnParallelLinear", "QKVParallelLinear"

O_PROJ: Row = ("self_attn.o_proj", ROW, ("self_attn.o_proj",))
DOWN_PROJ: Row = ("mlp.down_proj", ROW, ("mlp.down_proj",))
MLP: tuple[Row, ...] = (("mlp.gate_up_proj", MERGED, GATE_UP), DOWN_PROJ)
B_PROJECTIONS: tuple[Row, ...] = (
    ("self_attn.q_b_proj", COLUMN, ("self_attn.q_b_proj",)),
    ("self_attn.kv_b_proj", COLUMN, ("self_attn.kv_b_proj",)),
)
LM_HEAD: Row = ("lm_head", HEAD_CLASS, ("lm_head",))
"""Rows that engines share."""


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """What one engine's classes call a drafter's linear layers.

    Attributes:
        prefix: of a decoder layer, whose number goes into the braces. `only`: that of an only layer, where it differs.
        counted_on: whether layers are numbered on from the target's.
        layer: linear layers of one decoder layer, by the class that is built. `once`: those outside the layers.
            A class without a row is named as Llama's. `apart`: canonical weights that may be built plain and that
            rules of their own speak of.
    """

    prefix: str
    layer: Mapping[Variant, tuple[Row, ...]]
    once: Mapping[Variant, tuple[Row, ...]]
    only: str | None = None
    counted_on: bool = False
    apart: frozenset[str] = frozenset()


NO_NAMES = ModuleNames("", {"llama": ()}, {"llama": ()})
"""Of an engine for which nothing is quantized."""


def modules(spec: EngineSpec, facts: Facts, layers: int | None) -> tuple[Module, ...]:
    """Every module of a drafter that asks how it is quantized, in the order it is built.

    A name that several layers share (SGLang) stands once, for the weights of all of them.

    Args:
        layers: of the target; None when it is not known.
    """
    by_name: dict[str, Module] = {}
    names, variant = ENGINES[spec.name].names, _variant(facts)
    rows = list(names.once.get(variant, names.once["llama"]))
    for layer in range(facts.layers):
        prefix = _prefix(names, layer, facts.layers, UNKNOWN_TARGET if layers is None else layers)
        for name, kind, parts in names.layer.get(variant, names.layer["llama"]):
            rows.append((f"{prefix}.{name}", kind, tuple(f"layers.{layer}.{part}" for part in parts)))
    built = expected(facts)
    for name, kind, parts in rows:
        before = by_name[name].parts if name in by_name else ()
        there = tuple(part for part in parts if part == "lm_head" or f"{part}.weight" in built)
        if before or there:
            by_name[name] = Module(name, kind, (*before, *there))
    return tuple(by_name.values())


def _variant(facts: Facts) -> Variant:
    """The class that engines build, where they have one of its own."""
    match facts.attention:
        case Mla():
            return "mla"
        case Gqa(qk_norm=True):
            return "qwen3"
        case _:
            return "llama"


def _prefix(names: ModuleNames, layer: int, layers: int, target_layers: int) -> str:
    if names.only and layers == 1:
        return names.only
    return names.prefix.format(target_layers + layer if names.counted_on else layer)
