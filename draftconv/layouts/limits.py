"""What readers cannot express, as rows that several layouts share.

Each function gives the row for one reader; `cure` says which other one can. Where a reader
knows a thing in one combination only, the refused one is called `lone`.
"""

from __future__ import annotations

from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.layouts.base import Refusal


def _gqa(facts: Facts) -> Gqa | None:
    return facts.attention if isinstance(facts.attention, Gqa) else None


def no_norm_before_residual(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: f.norm_before_residual,
        f"{reader} cannot add the normed state as residual (norm_before_residual: true)",
        "it does not read the flag and always adds the raw state",
        cure,
    )


def no_qkv_bias(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: (g := _gqa(f)) is not None and g.qkv_bias,
        f"{reader} has no q/k/v biases in its drafter",
        "the tensors would be dropped without a message",
        cure,
    )


def no_o_bias(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: (g := _gqa(f)) is not None and g.o_bias,
        f"{reader} has no bias on o_proj in its drafter",
        "the tensor would be dropped without a message",
        cure,
    )


def no_lone_o_bias(reader: str) -> Refusal:
    return Refusal(
        lambda f: (g := _gqa(f)) is not None and g.o_bias and not g.qkv_bias,
        f"{reader} cannot have a bias on o_proj without biases on q, k and v",
        "one flag, attention_bias, builds all four, and the missing three would be uninitialised",
        "serve this drafter with SGLang, whose flag means o_proj alone",
    )


def no_qk_norm(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: (g := _gqa(f)) is not None and g.qk_norm,
        f"{reader} has no q_norm and k_norm in its drafter",
        "the tensors would be dropped without a message and attention would run unnormed",
        cure,
    )


def no_mlp_bias(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: f.mlp_bias,
        f"{reader} has no MLP biases in its drafter",
        "the tensors would be dropped without a message",
        cure,
    )


def no_fc_bias(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: f.fc_bias,
        f"{reader} drops fc.bias",
        "its fusion layer is built without a bias and the loader skips the tensor silently",
        cure,
    )


def no_lone_fc_bias(reader: str) -> Refusal:
    return Refusal(
        lambda f: (g := _gqa(f)) is not None and f.fc_bias and not g.o_bias,
        f"{reader} cannot have a bias on fc without one on o_proj in its Llama class",
        "one flag, bias, builds both, and the missing one would be uninitialised",
        "serve this drafter with TensorRT-LLM",
    )


def no_mla(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: isinstance(f.attention, Mla),
        f"{reader} has no MLA drafter",
        "its only EAGLE-3 models are Llama-style",
        cure,
    )


def no_plain_q(reader: str) -> Refusal:
    return Refusal(
        lambda f: isinstance(f.attention, Mla) and f.attention.q_lora is None,
        f"{reader} cannot load an MLA drafter with an uncompressed query (q_lora_rank null)",
        "it fuses q_a_proj with kv_a_proj_with_mqa unconditionally",
        "no engine loads it; retrain with q_lora_rank",
    )


def no_mla_norm_before_fc(reader: str) -> Refusal:
    return Refusal(
        lambda f: isinstance(f.attention, Mla) and f.fusion == "norm_before_fc",
        f"{reader}'s MLA drafter has no norm_before_fc",
        "the flag is not implemented in that class",
        "retrain with fc_norm",
    )


def no_norm_before_fc(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: f.fusion == "norm_before_fc",
        f"{reader} has no single norm over the captured states (norm_before_fc, input_norm)",
        "fc_norm and norm_before_fc have different denominators and cannot be rewritten into each other",
        cure,
    )


def no_fc_norm(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: f.fusion == "fc_norm",
        f"{reader} has no EAGLE-3.1 norms before fc",
        "fc_norm and norm_before_fc have different denominators and cannot be rewritten into each other",
        cure,
    )


def no_post_norm(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: f.feedback == "post-norm",
        f"{reader} always feeds back the pre-norm state",
        "losing the post-norm feedback costs a third of the acceptance (measured on vLLM 0.32.0)",
        cure,
    )


def one_layer(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: f.layers > 1,
        f"{reader} builds one layer only",
        "the other layers would be dropped",
        cure,
    )


def one_mla_layer(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: isinstance(f.attention, Mla) and f.layers > 1,
        f"{reader}'s MLA drafter has one layer only",
        "it raises `EAGLE3 currently only supports 1 layer`",
        cure,
    )


def no_reduced_mla(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: isinstance(f.attention, Mla) and f.reduced_vocab,
        f"{reader} cannot load a reduced vocabulary beside MLA",
        "its DeepSeek weight loader walks into d2t and stops with a KeyError (read, not run)",
        cure,
    )


def no_half_split_mla(reader: str) -> Refusal:
    return Refusal(
        lambda f: isinstance(f.attention, Mla) and f.rope.pairs == "halves",
        f"{reader} rotates MLA in interleaved pairs only",
        "rope_interleave: false is not read",
        "serve this drafter with SGLang",
    )


def no_window(reader: str, cure: str) -> Refusal:
    return Refusal(
        lambda f: f.window is not None,
        f"{reader} has no sliding window in its drafter",
        "it would attend to the whole context",
        cure,
    )


NOT_BOTH_FUSIONS = Refusal(
    lambda f: f.fusion == "both",
    "fc_norm and norm_before_fc cannot be served together",
    "vLLM and SGLang apply both in sequence, TensorRT-LLM only fc_norm",
    "remove the one that was not trained",
)

SILU_ONLY = Refusal(
    lambda f: f.activation != "silu",
    "drafter MLPs are silu(gate) * up in every engine",
    "another hidden_act is not read or refused",
    "retrain with hidden_act silu",
)
