"""EAGLE-3: a decoder layer that reads the token beside a state fused from several layers of the target.

Layer 0 has two norms before attention, `input_layernorm` for the token embedding and `hidden_norm` for the state; later
layers have one, canonically `input_layernorm` (vLLM and speculators spell it so, SGLang and TensorRT-LLM
`hidden_norm`). Sources of names and shapes: the trainers' exporters (TorchSpec, SpecForge, ModelOpt 0.47, speculators
0.9) and vLLM 0.33.0 `model_executor/models/{llama,deepseek}_eagle3.py`.
"""

from __future__ import annotations

from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.kinds.kind import DrafterKind, KindMark
from draftconv.drafter.tensor_specs import TensorSpec, gqa, mla

_PLAIN_Q = mla(lambda m: m.q_lora is None)
_COMPRESSED_Q = mla(lambda m: m.q_lora is not None)
_QKV_BIAS = gqa(lambda g: g.qkv_bias)
_QK_NORM = gqa(lambda g: g.qk_norm)

ROWS: tuple[TensorSpec, ...] = (
    TensorSpec("embed_tokens.weight", ("V", "H"), "embed", "none", lambda f: f.own_embedding),
    TensorSpec("fc.weight", ("H", "A*Ht"), "fc", "none"),
    TensorSpec("fc.bias", ("H",), "fc", "none", lambda f: f.fc_bias),
    TensorSpec("input_norm.weight", ("A*Ht",), "norm", "none", lambda f: f.fusion in ("norm_before_fc", "both")),
    TensorSpec("layers.{i}.hidden_norm.weight", ("H",), "norm", "first"),
    TensorSpec("layers.{i}.input_layernorm.weight", ("H",), "norm"),
    TensorSpec("layers.{i}.self_attn.q_proj.weight", ("Nh*D", "X"), "attention", when=gqa()),
    TensorSpec("layers.{i}.self_attn.k_proj.weight", ("Nkv*D", "X"), "attention", when=gqa()),
    TensorSpec("layers.{i}.self_attn.v_proj.weight", ("Nkv*D", "X"), "attention", when=gqa()),
    TensorSpec("layers.{i}.self_attn.q_proj.bias", ("Nh*D",), "attention", when=_QKV_BIAS),
    TensorSpec("layers.{i}.self_attn.k_proj.bias", ("Nkv*D",), "attention", when=_QKV_BIAS),
    TensorSpec("layers.{i}.self_attn.v_proj.bias", ("Nkv*D",), "attention", when=_QKV_BIAS),
    TensorSpec("layers.{i}.self_attn.q_norm.weight", ("D",), "norm", when=_QK_NORM),
    TensorSpec("layers.{i}.self_attn.k_norm.weight", ("D",), "norm", when=_QK_NORM),
    TensorSpec("layers.{i}.self_attn.o_proj.weight", ("H", "Nh*D"), "attention", when=gqa()),
    TensorSpec("layers.{i}.self_attn.o_proj.bias", ("H",), "attention", when=gqa(lambda g: g.o_bias)),
    TensorSpec("layers.{i}.self_attn.q_proj.weight", ("Nh*Dqk", "X"), "attention", when=_PLAIN_Q),
    TensorSpec("layers.{i}.self_attn.q_a_proj.weight", ("Rq", "X"), "attention", when=_COMPRESSED_Q),
    TensorSpec("layers.{i}.self_attn.q_a_layernorm.weight", ("Rq",), "norm", when=_COMPRESSED_Q),
    TensorSpec("layers.{i}.self_attn.q_b_proj.weight", ("Nh*Dqk", "Rq"), "attention", when=_COMPRESSED_Q),
    TensorSpec("layers.{i}.self_attn.kv_a_proj_with_mqa.weight", ("Rkva", "X"), "attention", when=mla()),
    TensorSpec("layers.{i}.self_attn.kv_a_layernorm.weight", ("Rkv",), "norm", when=mla()),
    TensorSpec("layers.{i}.self_attn.kv_b_proj.weight", ("Nh*Dkv", "Rkv"), "attention", when=mla()),
    TensorSpec("layers.{i}.self_attn.o_proj.weight", ("H", "Nh*Dv"), "attention", when=mla()),
    TensorSpec("layers.{i}.post_attention_layernorm.weight", ("H",), "norm"),
    TensorSpec("layers.{i}.mlp.gate_proj.weight", ("I", "H"), "mlp"),
    TensorSpec("layers.{i}.mlp.up_proj.weight", ("I", "H"), "mlp"),
    TensorSpec("layers.{i}.mlp.down_proj.weight", ("H", "I"), "mlp"),
    TensorSpec("layers.{i}.mlp.gate_proj.bias", ("I",), "mlp", when=lambda f: f.mlp_bias),
    TensorSpec("layers.{i}.mlp.up_proj.bias", ("I",), "mlp", when=lambda f: f.mlp_bias),
    TensorSpec("layers.{i}.mlp.down_proj.bias", ("H",), "mlp", when=lambda f: f.mlp_bias),
    TensorSpec("norm.weight", ("H",), "norm", "none"),
    TensorSpec("lm_head.weight", ("Vd", "H"), "head", "none", lambda f: f.own_head),
    TensorSpec("d2t", ("Vd",), "map", "none", lambda f: f.reduced_vocab),
    TensorSpec("t2d", ("V",), "map", "none", lambda f: f.reduced_vocab),
)  # fmt: skip


def has_fc(fingerprint: Fingerprint) -> bool:
    """True when fc is stored, plain or quantized."""
    return fingerprint.named(r"^fc\.(?!bias$)")


MARKS = (KindMark(has_fc, "it has no fc", "fc fuses the target's hidden states; all EAGLE-3 have it"),)

KIND = DrafterKind("3", "EAGLE-3", MARKS, lambda _: True, ROWS, "draftconv.reference.drafter:DrafterModel")
