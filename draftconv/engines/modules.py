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

from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.drafter.tensors import expected
from draftconv.engines.base import EngineSpec

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

_QKV = ("q_proj", "k_proj", "v_proj")
_ROW, _COLUMN, _REPLICATED = "RowParallelLinear", "ColumnParallelLinear", "ReplicatedLinear"
_MERGED, _QKV_CLASS = "MergedColumnParallelLinear", "QKVParallelLinear"

_ATTENTION = tuple(f"self_attn.{part}" for part in _QKV)
_A_PROJECTIONS = ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")

_MLP: tuple[Row, ...] = (
    ("mlp.gate_up_proj", _MERGED, _GATE_UP),
    ("mlp.down_proj", _ROW, ("mlp.down_proj",)),
)
_O: Row = ("self_attn.o_proj", _ROW, ("self_attn.o_proj",))
_LATENT: tuple[Row, ...] = (
    ("self_attn.q_b_proj", _COLUMN, ("self_attn.q_b_proj",)),
    ("self_attn.kv_b_proj", _COLUMN, ("self_attn.kv_b_proj",)),
)

LAYER: Mapping[str, tuple[Row, ...]] = {
    # model_executor/models/{llama,qwen3,deepseek}_eagle3.py, vLLM 0.33.0
    "vllm": (("self_attn.qkv_proj", _QKV_CLASS, _ATTENTION), _O, *_MLP),
    "vllm qwen3": (("qkv_proj", _QKV_CLASS, _ATTENTION), _O, *_MLP),
    "vllm mla": (
        ("self_attn.fused_qkv_a_proj", "DeepSeekV2FusedQkvAProjLinear", _A_PROJECTIONS), *_LATENT, _O, *_MLP,
    ),
    # srt/models/{llama,kimi_k25}_eagle3.py, SGLang 0.5.23
    "sglang": (
        ("qkv_proj", _QKV_CLASS, _ATTENTION), _O,
        ("gate_up_proj", _MERGED, _GATE_UP), ("down_proj", _ROW, ("mlp.down_proj",)),
    ),
    "sglang mla": (
        ("self_attn.fused_qkv_a_proj_with_mqa", _REPLICATED, _A_PROJECTIONS), *_LATENT, _O, *_MLP,
    ),
    # _torch/models/modeling_{speculative,deepseekv3}.py, TensorRT-LLM 1.3.0rc at 00679c66 and 1.2
    "trtllm": (("self_attn.qkv_proj", "Linear", _ATTENTION), _O, *_MLP),
    "trtllm mla": (("self_attn.kv_a_proj_with_mqa", "Linear", _A_PROJECTIONS), *_LATENT, _O, *_MLP),
}  # fmt: skip
"""Linear layers of one decoder layer: name, class, canonical weights."""

ONCE: Mapping[str, tuple[Row, ...]] = {
    "vllm": (("model.fc", _REPLICATED, ("fc",)), ("lm_head", HEAD_CLASS, ("lm_head",))),
    "vllm mla": (("model.fc", _REPLICATED, ("fc",)),),
    "sglang": (("lm_head", HEAD_CLASS, ("lm_head",)),),
    "sglang mla": (("model.fc", _REPLICATED, ("fc",)), ("lm_head", HEAD_CLASS, ("lm_head",))),
    "trtllm": (("model.fc", "Linear", ("fc",)), ("lm_head", HEAD_CLASS, ("lm_head",))),
}
"""Modules outside the layers."""


def modules(spec: EngineSpec, facts: Facts, layers: int | None) -> tuple[Module, ...]:
    """Every module of a drafter that asks how it is quantized, in the order it is built.

    A name that several layers share (SGLang) stands once, for the weights of all of them.

    Args:
        layers: of the target; None when it is not known.
    """
    found: dict[str, Module] = {}
    rows = [(name, kind, parts) for name, kind, parts in ONCE[_variant(spec.name, facts, ONCE)]]
    for layer in range(facts.layers):
        prefix = _prefix(spec, facts, layer, UNKNOWN_TARGET if layers is None else layers)
        for name, kind, parts in LAYER[_variant(spec.name, facts, LAYER)]:
            rows.append((f"{prefix}.{name}", kind, tuple(f"layers.{layer}.{part}" for part in parts)))
    built = expected(facts)
    for name, kind, parts in rows:
        before = found[name].parts if name in found else ()
        there = tuple(part for part in parts if part == "lm_head" or f"{part}.weight" in built)
        if before or there:
            found[name] = Module(name, kind, (*before, *there))
    return tuple(found.values())


def _variant(engine: str, facts: Facts, table: Mapping[str, object]) -> str:
    """The row of a table: the engine's own, or that of a class with other names."""
    match facts.attention:
        case Mla():
            special = f"{engine} mla"
        case Gqa(qk_norm=True):
            special = f"{engine} qwen3"
        case _:
            special = engine
    return special if special in table else engine


def _prefix(spec: EngineSpec, facts: Facts, layer: int, target_layers: int) -> str:
    match spec.name:
        case "vllm":
            return f"model.layers.{target_layers + layer}"
        case "trtllm":
            return "model.midlayer" if facts.layers == 1 else f"model.midlayer.{layer}"
        case _:
            return "model"
