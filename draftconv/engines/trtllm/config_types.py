"""Values of config.json that stop the load, whatever they say of the drafter."""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.drafter.config import Config

OWN_TYPES = ("kimi_k2", "deepseek_v32", "glm_moe_dsa")
"""model_types with a config class in the tree (_torch/pyexecutor/config_utils.py)."""

LATENT_TYPES = ("deepseek_v2", "deepseek_v3", *OWN_TYPES)
"""model_types whose class has a kv_lora_rank where config.json has none."""

WITHOUT_BIAS = ("mistral", "phi3", "qwen2")
"""model_types of transformers whose class gives attention_bias no default."""

WITH_BIAS = ("deepseek_v2", "deepseek_v3", "llama", "llama4_text", "qwen3")
"""model_types of transformers whose class has attention_bias."""

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")

BASE: Mapping[str, tuple[type, ...]] = {"is_encoder_decoder": (bool,), "chunk_size_feed_forward": (int,)}
"""Fields of the class below them all."""

STRICT: Mapping[str, tuple[type, ...]] = {
    "hidden_act": (str,),
    "initializer_range": (float,),
    "rms_norm_eps": (float,),
    "use_cache": (bool,),
    "tie_word_embeddings": (bool,),
    "max_position_embeddings": (int,),
    **dict.fromkeys(SIZES, (int,)),
    **BASE,
}
"""Fields that the strict classes of transformers 5 check (run with 5.8.1; no null among them)."""

DTYPES = frozenset({"bfloat16", "float16", "float32", "float64", "half", "float", "double"})

INDEXED = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
"""Architectures for which index_n_heads is read, whatever class the drafter is built from."""


def strict_faults(config: Config) -> list[str]:
    """Values of another type than the field of the config class."""
    kind = config.text("model_type")
    if kind in OWN_TYPES:
        nulls = [f"{key}: null" for key in (*SIZES, "rms_norm_eps") if config.has(key) and config.raw(key) is None]
        return [*nulls, *_wrong(config, BASE)]
    checked = dict(STRICT)
    if kind in WITH_BIAS:
        checked["attention_bias"] = (bool,)
    if kind in ("deepseek_v2", "deepseek_v3", "llama"):
        checked["mlp_bias"] = (bool,)
    return _wrong(config, checked)


def _wrong(config: Config, checked: Mapping[str, tuple[type, ...]]) -> list[str]:
    return [
        f"{key}: {_shown(config.raw(key))}"
        for key, types in checked.items()
        if config.has(key) and not _is(config.raw(key), types)
    ]


def _is(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _shown(value: object) -> str:
    return "null" if value is None else str(value)
