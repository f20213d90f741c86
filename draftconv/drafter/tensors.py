"""The tensors of a drafter: canonical names, shapes and when each must exist.

Canonical names are the bare `layers.{i}.` spelling. Layer 0 has two norms before
attention, `input_layernorm` for the token embedding and `hidden_norm` for the state;
later layers have one, canonically `input_layernorm` (vLLM and speculators spell it so,
SGLang and TensorRT-LLM `hidden_norm`). Sources of names and shapes: the trainers'
exporters (TorchSpec, SpecForge, ModelOpt 0.47, speculators 0.9) and vLLM 0.33.0
`model_executor/models/{llama,deepseek}_eagle3.py`.

Shape symbols (element counts):
    H hidden · Ht width of a captured state · A captured states · V, Vd target and draft
    vocabulary · I MLP width · X input of attention (2H in layer 0, H later) · Nh, Nkv heads
    · D head width · Rq, Rkv latent ranks · Dqk = nope+rope · Dkv = nope+v · Rkva = Rkv+rope
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from draftconv.drafter.facts import Facts, Gqa, Mla

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""The tables: a row per token of the target, a row per token that can be drafted."""

Role = Literal["embed", "head", "fc", "norm", "attention", "mlp", "map"]
Layers = Literal["none", "first", "later", "all", "aux"]
When = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `{i}` in the name is a layer, `{a}` a captured state."""

    name: str
    shape: tuple[str, ...]
    role: Role
    layers: Layers = "all"
    when: When = lambda _: True


@dataclass(frozen=True, slots=True)
class Expected:
    """What the facts say of one canonical tensor."""

    shape: tuple[int, ...]
    role: Role


def _gqa(test: Callable[[Gqa], bool] = lambda _: True) -> When:
    return lambda facts: isinstance(facts.attention, Gqa) and test(facts.attention)


def _mla(test: Callable[[Mla], bool] = lambda _: True) -> When:
    return lambda facts: isinstance(facts.attention, Mla) and test(facts.attention)


_PLAIN_Q = _mla(lambda m: m.q_lora is None)
_COMPRESSED_Q = _mla(lambda m: m.q_lora is not None)
_QKV_BIAS = _gqa(lambda g: g.qkv_bias)
_QK_NORM = _gqa(lambda g: g.qk_norm)

ROWS: tuple[Row, ...] = (
    Row("embed_tokens.weight", ("V", "H"), "embed", "none", lambda f: f.own_embedding),
    Row("fc.weight", ("H", "A*Ht"), "fc", "none"),
    Row("fc.bias", ("H",), "fc", "none", lambda f: f.fc_bias),
    Row("fc_norm.{a}.weight", ("Ht",), "norm", "aux", lambda f: f.fusion in ("fc_norm", "both")),
    Row("input_norm.weight", ("A*Ht",), "norm", "none", lambda f: f.fusion in ("norm_before_fc", "both")),
    Row("layers.{i}.hidden_norm.weight", ("H",), "norm", "first"),
    Row("layers.{i}.input_layernorm.weight", ("H",), "norm"),
    Row("layers.{i}.self_attn.q_proj.weight", ("Nh*D", "X"), "attention", when=_gqa()),
    Row("layers.{i}.self_attn.k_proj.weight", ("Nkv*D", "X"), "attention", when=_gqa()),
    Row("layers.{i}.self_attn.v_proj.weight", ("Nkv*D", "X"), "attention", when=_gqa()),
    Row("layers.{i}.self_attn.q_proj.bias", ("Nh*D",), "attention", when=_QKV_BIAS),
    Row("layers.{i}.self_attn.k_proj.bias", ("Nkv*D",), "attention", when=_QKV_BIAS),
    Row("layers.{i}.self_attn.v_proj.bias", ("Nkv*D",), "attention", when=_QKV_BIAS),
    Row("layers.{i}.self_attn.q_norm.weight", ("D",), "norm", when=_QK_NORM),
    Row("layers.{i}.self_attn.k_norm.weight", ("D",), "norm", when=_QK_NORM),
    Row("layers.{i}.self_attn.o_proj.weight", ("H", "Nh*D"), "attention", when=_gqa()),
    Row("layers.{i}.self_attn.o_proj.bias", ("H",), "attention", when=_gqa(lambda g: g.o_bias)),
    Row("layers.{i}.self_attn.q_proj.weight", ("Nh*Dqk", "X"), "attention", when=_PLAIN_Q),
    Row("layers.{i}.self_attn.q_a_proj.weight", ("Rq", "X"), "attention", when=_COMPRESSED_Q),
    Row("layers.{i}.self_attn.q_a_layernorm.weight", ("Rq",), "norm", when=_COMPRESSED_Q),
    Row("layers.{i}.self_attn.q_b_proj.weight", ("Nh*Dqk", "Rq"), "attention", when=_COMPRESSED_Q),
    Row("layers.{i}.self_attn.kv_a_proj_with_mqa.weight", ("Rkva", "X"), "attention", when=_mla()),
    Row("layers.{i}.self_attn.kv_a_layernorm.weight", ("Rkv",), "norm", when=_mla()),
    Row("layers.{i}.self_attn.kv_b_proj.weight", ("Nh*Dkv", "Rkv"), "attention", when=_mla()),
    Row("layers.{i}.self_attn.o_proj.weight", ("H", "Nh*Dv"), "attention", when=_mla()),
    Row("layers.{i}.post_attention_layernorm.weight", ("H",), "norm"),
    Row("layers.{i}.mlp.gate_proj.weight", ("I", "H"), "mlp"),
    Row("layers.{i}.mlp.up_proj.weight", ("I", "H"), "mlp"),
    Row("layers.{i}.mlp.down_proj.weight", ("H", "I"), "mlp"),
    Row("layers.{i}.mlp.gate_proj.bias", ("I",), "mlp", when=lambda f: f.mlp_bias),
    Row("layers.{i}.mlp.up_proj.bias", ("I",), "mlp", when=lambda f: f.mlp_bias),
    Row("layers.{i}.mlp.down_proj.bias", ("H",), "mlp", when=lambda f: f.mlp_bias),
    Row("norm.weight", ("H",), "norm", "none"),
    Row("lm_head.weight", ("Vd", "H"), "head", "none", lambda f: f.own_head),
    Row("d2t", ("Vd",), "map", "none", lambda f: f.reduced_vocab),
    Row("t2d", ("V",), "map", "none", lambda f: f.reduced_vocab),
)  # fmt: skip

OPTIONAL = frozenset({"t2d"})
"""Tensors that follow from others (t2d from d2t), so no file has to hold them."""


def expected(facts: Facts) -> dict[str, Expected]:
    """Every canonical tensor that a drafter with these facts has, with its shape and role.

    Tensors in `OPTIONAL` are included; a file may lack them.
    """
    found: dict[str, Expected] = {}
    for row in ROWS:
        if row.when(facts):
            for name, layer in _instances(row, facts):
                found[name] = Expected(_shape(row.shape, _symbols(facts, layer)), row.role)
    return found


def _instances(row: Row, facts: Facts) -> Iterator[tuple[str, int]]:
    match row.layers:
        case "none":
            yield row.name, 0
        case "aux":
            for index in range(facts.aux):
                yield row.name.replace("{a}", str(index)), 0
        case _:
            start, stop = {"first": (0, 1), "later": (1, facts.layers), "all": (0, facts.layers)}[row.layers]
            for layer in range(start, stop):
                yield row.name.replace("{i}", str(layer)), layer


def _shape(symbols: tuple[str, ...], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(math.prod(values[part] for part in dimension.split("*")) for dimension in symbols)


def _symbols(facts: Facts, layer: int) -> dict[str, int]:
    common = {
        "H": facts.hidden,
        "Ht": facts.target_hidden,
        "A": facts.aux,
        "V": facts.vocab,
        "Vd": facts.draft_vocab,
        "I": facts.intermediate,
        "X": 2 * facts.hidden if layer == 0 else facts.hidden,
    }
    match facts.attention:
        case Gqa(heads, kv_heads, head_dim):
            return common | {"Nh": heads, "Nkv": kv_heads, "D": head_dim}
        case Mla(heads, q_lora, kv_lora, nope, rope, v):
            return common | {
                "Nh": heads,
                "Rq": q_lora or 0,
                "Rkv": kv_lora,
                "Rkva": kv_lora + rope,
                "Dqk": nope + rope,
                "Dkv": nope + v,
                "Dv": v,
            }
