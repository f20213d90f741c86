"""The explicit config.json that every layout starts from.

Emission rules, with the reader that makes each one necessary:
* every flag is written, also when false: vLLM's speculators importer defaults
  norm_before_residual to true, SGLang's Llama class needs draft_vocab_size to exist;
* no null is written: TensorRT-LLM and SGLang test presence (target_hidden_size, eagle_config);
  only draft_vocab_size is null for SGLang when the drafter has no head of its own;
* target_hidden_size only when it differs: its presence makes SGLang and TensorRT-LLM
  keep the drafter's own embedding;
* both rope spellings: transformers 5 reads rope_parameters, TensorRT-LLM rope_scaling;
* use_sliding_window beside a window: without it transformers' Qwen3Config forgets the width;
* no auto_map, no attention_factor, no n_routed_experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from draftconv.drafter.boundaries import IDS, family_ids
from draftconv.drafter.facts import Facts, Gqa, Mla
from draftconv.drafter.rope import spell_rope
from draftconv.errors import Refused, UsageError
from draftconv.layouts.base import Writing

NEUTRAL_KEYS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
    "attention_dropout",
    "use_cache",
    "logit_scale",
)
"""Keys carried over as they are: they do not change what a drafter computes greedily."""

SWITCHES: Mapping[str, bool] = MappingProxyType({
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
})  # fmt: skip
"""What ModelOpt and TorchSpec write into `eagle_config` for the computation that every engine does."""

TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


def explicit_config(writing: Writing) -> dict[str, object]:
    """Everything but the layer ids, in one flat object."""
    facts = writing.facts
    config: dict[str, object] = {
        "architectures": [architecture(facts)],
        "model_type": model_type(facts),
        "hidden_size": facts.hidden,
        "intermediate_size": facts.intermediate,
        "num_hidden_layers": facts.layers,
        **attention_keys(facts),
        "hidden_act": facts.activation,
        "rms_norm_eps": facts.eps,
        "vocab_size": facts.vocab,
        "draft_vocab_size": facts.draft_vocab,
        **spell_rope(facts.rope),
        "tie_word_embeddings": False,
        "mlp_bias": facts.mlp_bias,
        "num_aux_hidden_states": facts.aux,
        "fc_norm": facts.fusion == "fc_norm",
        "norm_before_fc": facts.fusion == "norm_before_fc",
        "norm_output": facts.feedback == "post-norm",
        "norm_before_residual": facts.norm_before_residual,
        "torch_dtype": writing.dtype,
        **writing.kept,
    }
    if facts.fc_bias:
        config["bias"] = True
    if facts.max_positions is not None:
        config["max_position_embeddings"] = facts.max_positions
    if facts.target_hidden != facts.hidden:
        config["target_hidden_size"] = facts.target_hidden
    if facts.window is not None:
        config |= {
            "sliding_window": facts.window,
            "use_sliding_window": True,
            "layer_types": ["sliding_attention"] * facts.layers,
        }
    return config


def without(config: Mapping[str, object], *keys: str) -> dict[str, object]:
    """The config less the keys that this layout's producer does not write."""
    return {key: value for key, value in config.items() if key not in keys}


def attention_keys(facts: Facts) -> dict[str, object]:
    """The sizes of attention as transformers' LlamaConfig and DeepseekV3Config call them."""
    match facts.attention:
        case Gqa(heads, kv_heads, head_dim, qkv_bias, o_bias):
            return {
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "head_dim": head_dim,
                "attention_bias": qkv_bias or o_bias,
            }
        case Mla(heads, q_lora, kv_lora, nope, rope, v):
            keys: dict[str, object] = {
                "num_attention_heads": heads,
                "num_key_value_heads": heads,
                "kv_lora_rank": kv_lora,
                "qk_nope_head_dim": nope,
                "qk_rope_head_dim": rope,
                "v_head_dim": v,
                "rope_interleave": facts.rope.pairs == "interleaved",
                "attention_bias": False,
            }
            return keys if q_lora is None else keys | {"q_lora_rank": q_lora}


def architecture(facts: Facts) -> str:
    """The class name that vLLM and SGLang both know (vLLM alone has one for q/k norms)."""
    match facts.attention:
        case Mla():
            return "Eagle3DeepseekV2ForCausalLM"
        case Gqa(qk_norm=True):
            return "Eagle3Qwen3ForCausalLM"
        case _:
            return "LlamaForCausalLMEagle3"


def model_type(facts: Facts) -> str:
    """kimi_k2 for MLA: vLLM rewrites deepseek_v3 to an MTP class, the others take either."""
    match facts.attention:
        case Mla():
            return "kimi_k2"
        case Gqa(qk_norm=True):
            return "qwen3"
        case _:
            return "llama"


def eagle_section(facts: Facts) -> dict[str, object]:
    """The nested object, without ids: TensorRT-LLM reads norm_before_fc and the feedback only here."""
    return {
        **SWITCHES,
        "norm_before_fc": facts.fusion == "norm_before_fc",
        "return_hidden_post_norm": facts.feedback == "post-norm",
        **double_norm_mark(facts),
    }


def double_norm_mark(facts: Facts) -> dict[str, object]:
    """The key by which a drafter of ModelOpt 0.41-0.47 stays recognisable; no reader acts on it."""
    return {"parallel_draft_step": 1} if facts.double_norm else {}


def nested_ids(writing: Writing, reader: str) -> dict[str, object]:
    """Ids for `eagle_config`, counted by the target's family; nothing for the default triple.

    Args:
        reader: who counts so, as it is called in messages.

    Raises:
        Refused, UsageError: it cannot capture these boundaries, or the target is needed.
    """
    if writing.boundaries is None:
        return {}
    family = writing.target.family if writing.target else None
    layers = writing.target.layers if writing.target else None
    return {IDS: list(family_ids(writing.boundaries, family, layers, reader))}


def nested_ids_if_any(writing: Writing) -> dict[str, object]:
    """As `nested_ids`, but for layouts whose own reader looks elsewhere."""
    try:
        return nested_ids(writing, "nobody")
    except (Refused, UsageError):
        return {}


def top_ids(writing: Writing) -> dict[str, object]:
    """Ids as boundaries at the top level; nothing for the default triple."""
    if writing.boundaries is None:
        return {}
    return {IDS: list(writing.boundaries)}


def after_ids(writing: Writing) -> dict[str, object]:
    """Ids in the trainers' `after the layer` numbering.

    Raises:
        Refused: boundary 0 is after no layer; or a first id other than 1 on a DeepSeek/Kimi
            target, which trainers whose engine counts by family read one layer lower.
    """
    if writing.boundaries is None:
        return {}
    first = writing.boundaries[0]
    if first == 0:
        raise Refused(
            "boundary 0 has no number in the `after the layer` convention",
            why="trainers hook the outputs of layers, and boundary 0 enters the first one",
        )
    if first != 2 and writing.target and writing.target.family == "deepseek":
        raise Refused(
            f"a trainer may mis-read boundaries {list(writing.boundaries)} of a DeepSeek/Kimi target",
            why="captured through an engine that counts by family, ids that do not start with 1 mean one layer lower",
        )
    return {IDS: [b - 1 for b in writing.boundaries]}
